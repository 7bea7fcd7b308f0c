"""DDP communication hooks: gradients through lanes of their own, with or without error feedback.

Error feedback (Seide et al., 2014; Karimireddy et al., 2019): what quantization cut off one step's contribution is
added to the next one's, so that nothing is lost for good and narrow lanes converge like wide ones.
"""

import sys

# No `from __future__ import annotations`: DDP compares a hook's annotations with classes.
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.futures import Future

from fanin.errors import ConfigurationError
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.handles.dynamo import keep_out
from fanin.host.torch.training.buckets_only import require_bucket
from fanin.host.torch.training.same_parameters import Parameters, same_parameters
from fanin.numerics.reduction import lanes_number


class LanesState:
    """State of `lanes_hook`: which group, how many bits, and what each bucket still owes.

    `lanes`: as in `Options.lanes`, 8 or "4/8"; None for the group's own. `error_feedback`: keep and add back what was
    cut off (one float32 per gradient element, on the GPU where words are made there, otherwise in host memory).
    `group`: a fanin group; None for the world's.
    """

    def __init__(
        self, *, lanes: int | str | None = None, error_feedback: bool = False, group: c10d.ProcessGroup | None = None
    ) -> None:
        if lanes is not None:
            lanes_number(lanes)
        found = group if group is not None else dist.group.WORLD
        if not isinstance(found, FaninProcessGroup):
            raise ConfigurationError(
                "lanes_hook needs a group whose backend is 'fanin'"
                ". Remedy: init_process_group('fanin'), or that group as process_group"
            )
        self.group = found
        self.lanes = lanes
        self.error_feedback = error_feedback
        self._residuals: dict[int, tuple[Parameters, torch.Tensor]] = {}

    def residual(self, bucket: c10d.GradBucket) -> torch.Tensor | None:
        """The bucket's residual; None without error feedback, and of float64.

        It starts at zero, and again when DDP has put other parameters into the bucket.
        """
        gradients = bucket.buffer()
        if not self.error_feedback or gradients.dtype == torch.float64:
            return None
        parameters = tuple(bucket.parameters())
        known, residual = self._residuals.get(bucket.index(), ((), None))
        if residual is None or not same_parameters(known, parameters):
            device = self.group.residual_device(gradients, self.lanes)
            residual = torch.zeros(gradients.numel(), dtype=torch.float32, device=device)
            self._residuals[bucket.index()] = (parameters, residual)
        return residual

    def residual_norm(self) -> float:
        """Euclidean norm of all that is still owed by this rank."""
        return float(sum(float(residual.square().sum()) for _, residual in self._residuals.values()) ** 0.5)


def lanes_hook(state: LanesState, bucket: c10d.GradBucket) -> Future[torch.Tensor]:
    """Average a bucket through the switch in the state's lanes.

    `model.register_comm_hook(LanesState(lanes=8, error_feedback=True), lanes_hook)`
    """
    require_bucket("lanes_hook", bucket)
    work = state.group.all_reduce_lanes(
        bucket.buffer(), lanes=state.lanes, average=True, residual=state.residual(bucket)
    )
    return work.get_future().then(lambda reduced: reduced.value()[0])


keep_out(sys.modules[__name__])
