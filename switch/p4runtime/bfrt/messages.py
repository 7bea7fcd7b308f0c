"""Messages of the BfRt service that our controller needs, with their field numbers on the wire.

They follow bfruntime.proto in p4lang/open-p4studio (Apache-2.0, pkgsrc/bf-drivers/src/bf_rt/proto, commit 1f97778).
Fields that are not needed are left out; messages that contain them can still be read. The messages have a descriptor
pool of their own, so that the SDE's client may be imported in the same process.
"""

from __future__ import annotations

import enum
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "bfrt_proto"
SERVICE = f"/{PACKAGE}.BfRuntime/"
"""Prefix of the names of the service's calls."""
ALL_PIPES = 0xFFFF
"""`pipe_id` of a target that addresses all pipes: their entries are the same."""
BOTH_DIRECTIONS = ALL_PARSERS = 0xFF


class UpdateType(enum.IntEnum):
    """Values of Update.type on the wire."""

    INSERT = 1
    MODIFY = 2
    DELETE = 4


class PipelineAction(enum.IntEnum):
    """Values of SetForwardingPipelineConfigRequest.action on the wire."""

    BIND = 0
    VERIFY_AND_WARM_INIT_BEGIN_AND_END = 3


WARM_INIT_FINISHED = 1
"""SetForwardingPipelineConfigResponse.set_forwarding_pipeline_config_response_type once a program is loaded."""

_KIND = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _KIND.TYPE_BOOL,
    "bytes": _KIND.TYPE_BYTES,
    "float": _KIND.TYPE_FLOAT,
    "int32": _KIND.TYPE_INT32,
    "string": _KIND.TYPE_STRING,
    "uint32": _KIND.TYPE_UINT32,
}
_ONE_OF, _REPEATED = "|", "*"

# Name, number, type; `*` before a type: repeated; `|` before it: of the message's one oneof. Enumerations travel as
# int32 does.
_MESSAGES: dict[str, tuple[tuple[str, int, str], ...]] = {
    "Status": (("code", 1, "int32"), ("message", 2, "string")),
    "TargetDevice": (
        ("device_id", 1, "uint32"),
        ("pipe_id", 2, "uint32"),
        ("direction", 3, "uint32"),
        ("prsr_id", 4, "uint32"),
    ),
    "Exact": (("value", 1, "bytes"),),
    "Ternary": (("value", 1, "bytes"), ("mask", 2, "bytes")),
    "LPM": (("value", 1, "bytes"), ("prefix_len", 2, "int32")),
    "Range": (("low", 1, "bytes"), ("high", 2, "bytes")),
    "Optional": (("value", 1, "bytes"), ("is_valid", 2, "bool")),
    "KeyField": (
        ("field_id", 1, "uint32"),
        ("exact", 2, "|Exact"),
        ("ternary", 3, "|Ternary"),
        ("lpm", 4, "|LPM"),
        ("range", 5, "|Range"),
        ("optional", 6, "|Optional"),
    ),
    "TableKey": (("fields", 1, "*KeyField"),),
    "IntArray": (("val", 1, "*uint32"),),
    "BoolArray": (("val", 1, "*bool"),),
    "DataField": (
        ("field_id", 1, "uint32"),
        ("stream", 2, "|bytes"),
        ("float_val", 3, "|float"),
        ("str_val", 4, "|string"),
        ("int_arr_val", 5, "|IntArray"),
        ("bool_arr_val", 6, "|BoolArray"),
        ("bool_val", 8, "|bool"),
    ),
    "TableData": (("action_id", 1, "uint32"), ("fields", 2, "*DataField")),
    "TableFlags": (("from_hw", 1, "bool"), ("key_only", 2, "bool")),
    "TableEntry": (
        ("table_id", 1, "uint32"),
        ("key", 2, "|TableKey"),
        ("data", 3, "TableData"),
        ("is_default_entry", 4, "bool"),
        ("table_flags", 9, "TableFlags"),
    ),
    "Entity": (("table_entry", 1, "|TableEntry"),),
    "Update": (("type", 1, "int32"), ("entity", 2, "Entity")),
    "WriteRequest": (
        ("target", 1, "TargetDevice"),
        ("client_id", 2, "uint32"),
        ("updates", 3, "*Update"),
        ("atomicity", 4, "int32"),
        ("p4_name", 5, "string"),
    ),
    "WriteResponse": (("status", 1, "*Error"),),
    "ReadRequest": (
        ("target", 1, "TargetDevice"),
        ("client_id", 2, "uint32"),
        ("entities", 3, "*Entity"),
        ("p4_name", 4, "string"),
    ),
    "ReadResponse": (("entities", 1, "*Entity"), ("status", 2, "*Error")),
    "Notifications": (
        ("enable_learn_notifications", 1, "bool"),
        ("enable_idletimeout_notifications", 2, "bool"),
        ("enable_port_status_change_notifications", 3, "bool"),
    ),
    "Subscribe": (("device_id", 2, "uint32"), ("notifications", 3, "Notifications"), ("status", 4, "Status")),
    "StreamMessageRequest": (("client_id", 1, "uint32"), ("subscribe", 2, "|Subscribe")),
    "StreamMessageResponse": (
        ("subscribe", 1, "|Subscribe"),
        ("set_forwarding_pipeline_config_response", 5, "|SetForwardingPipelineConfigResponse"),
    ),
    "SetForwardingPipelineConfigRequest": (
        ("device_id", 1, "uint32"),
        ("client_id", 2, "uint32"),
        ("action", 3, "int32"),
        ("dev_init_mode", 4, "int32"),
        ("base_path", 5, "string"),
        ("config", 6, "*ForwardingPipelineConfig"),
    ),
    "SetForwardingPipelineConfigResponse": (("set_forwarding_pipeline_config_response_type", 1, "int32"),),
    "ForwardingPipelineConfig": (
        ("p4_name", 1, "string"),
        ("bfruntime_info", 2, "bytes"),
        ("profiles", 3, "*Profile"),
    ),
    "Profile": (
        ("profile_name", 1, "string"),
        ("context", 2, "bytes"),
        ("binary", 3, "bytes"),
        ("pipe_scope", 4, "*uint32"),
    ),
    "NonP4Config": (("bfruntime_info", 1, "bytes"),),
    "GetForwardingPipelineConfigRequest": (("device_id", 1, "uint32"), ("client_id", 2, "uint32")),
    "GetForwardingPipelineConfigResponse": (
        ("config", 1, "*ForwardingPipelineConfig"),
        ("non_p4_config", 2, "NonP4Config"),
    ),
    "Error": (("canonical_code", 1, "int32"), ("message", 2, "string"), ("space", 3, "string"), ("code", 4, "int32")),
}


def _described(name: str, fields: tuple[tuple[str, int, str], ...]) -> Any:
    described = descriptor_pb2.DescriptorProto(name=name)
    for field_name, number, kind in fields:
        field = described.field.add(name=field_name, number=number)
        field.label = field.LABEL_REPEATED if kind.startswith(_REPEATED) else field.LABEL_OPTIONAL
        if kind.startswith(_ONE_OF):
            if not described.oneof_decl:
                described.oneof_decl.add(name="value")
            field.oneof_index = 0
        plain = kind.lstrip(_ONE_OF + _REPEATED)
        if plain in _SCALARS:
            field.type = _SCALARS[plain]
        else:
            field.type, field.type_name = field.TYPE_MESSAGE, f".{PACKAGE}.{plain}"
    return described


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="fanin/bfrt.proto", package=PACKAGE, syntax="proto3")
    file.message_type.extend(_described(name, fields) for name, fields in _MESSAGES.items())
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    named = {name: pool.FindMessageTypeByName(f"{PACKAGE}.{name}") for name in _MESSAGES}
    if hasattr(message_factory, "GetMessageClass"):  # protobuf 4.22 and later
        return {name: message_factory.GetMessageClass(each) for name, each in named.items()}
    factory = message_factory.MessageFactory(pool)
    return {name: factory.GetPrototype(each) for name, each in named.items()}


_CLASSES = _classes()

Entity: Any = _CLASSES["Entity"]
Error: Any = _CLASSES["Error"]
ForwardingPipelineConfig: Any = _CLASSES["ForwardingPipelineConfig"]
GetForwardingPipelineConfigRequest: Any = _CLASSES["GetForwardingPipelineConfigRequest"]
GetForwardingPipelineConfigResponse: Any = _CLASSES["GetForwardingPipelineConfigResponse"]
ReadRequest: Any = _CLASSES["ReadRequest"]
ReadResponse: Any = _CLASSES["ReadResponse"]
SetForwardingPipelineConfigRequest: Any = _CLASSES["SetForwardingPipelineConfigRequest"]
SetForwardingPipelineConfigResponse: Any = _CLASSES["SetForwardingPipelineConfigResponse"]
StreamMessageRequest: Any = _CLASSES["StreamMessageRequest"]
StreamMessageResponse: Any = _CLASSES["StreamMessageResponse"]
TableEntry: Any = _CLASSES["TableEntry"]
Update: Any = _CLASSES["Update"]
WriteRequest: Any = _CLASSES["WriteRequest"]
WriteResponse: Any = _CLASSES["WriteResponse"]

UNARY = {
    "Write": (WriteRequest, WriteResponse),
    "SetForwardingPipelineConfig": (SetForwardingPipelineConfigRequest, SetForwardingPipelineConfigResponse),
    "GetForwardingPipelineConfig": (GetForwardingPipelineConfigRequest, GetForwardingPipelineConfigResponse),
}
"""Calls with one request and one response. Read returns a stream; StreamChannel is a stream in both directions."""


def target(device_id: int) -> Any:
    """The target that addresses a whole device: all pipes, directions and parsers."""
    return _CLASSES["TargetDevice"](
        device_id=device_id, pipe_id=ALL_PIPES, direction=BOTH_DIRECTIONS, prsr_id=ALL_PARSERS
    )
