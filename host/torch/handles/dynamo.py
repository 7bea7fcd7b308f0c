"""Keeps torch.compile out of modules of ours: it would trace into them after a graph break, and fail."""

from __future__ import annotations

import types

import torch

DISABLED = {"_torchdynamo_disable": True, "_torchdynamo_disable_msg": "collectives of fanin are not traced"}
"""Attributes that torch.compiler.disable sets on a function; the decorator itself would import dynamo, for seconds."""


def keep_out(module: types.ModuleType) -> None:
    """Make torch.compile skip the functions of a module; backend.py lists the modules that a traced program may call.

    A frame of ours that runs is skipped by the strategy of its code. A call that dynamo meets while it traces a
    program's function, as of a handle's `wait`, is another matter: it would be inlined as far as something that cannot
    be traced, of which a warning tells the program's user. A function that is marked as disabled breaks the graph at
    the call.
    """
    dynamo = torch._C._dynamo.eval_frame
    action = dynamo._FrameAction.SKIP
    strategy = dynamo._FrameExecStrategy(action, action)
    for holder in [module, *(item for item in vars(module).values() if isinstance(item, type))]:
        if getattr(holder, "__module__", module.__name__) != module.__name__:
            continue
        for item in vars(holder).values():
            function = item.fget if isinstance(item, property) else item
            if isinstance(function, types.FunctionType):
                dynamo.set_code_exec_strategy(function.__code__, strategy)
                function.__dict__.update(DISABLED)
