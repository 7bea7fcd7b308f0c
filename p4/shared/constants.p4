/* Generated from fanin/protocol/wire.py by `python -m fanin.constants p4/shared/constants.p4`. */
#ifndef FANIN_CONSTANTS_P4
#define FANIN_CONSTANTS_P4

@noWarn("unused") const bit<16> MAGIC = 0xfa19;
@noWarn("unused") const bit<8> VERSION = 0x1;
@noWarn("unused") const bit<16> HEADER_BYTES = 0x24;
@noWarn("unused") const bit<8> MAX_CODES = 0x40;
@noWarn("unused") const bit<8> MAX_WORKERS = 0x20;
@noWarn("unused") const bit<32> MAX_BASE = 0xffffffff;
@noWarn("unused") const bit<8> SWITCH_WORKER = 0xff;

@noWarn("unused") const bit<8> KIND_CONTRIBUTION = 1;
@noWarn("unused") const bit<8> KIND_RESULT = 2;
@noWarn("unused") const bit<8> KIND_ANSWER = 3;
@noWarn("unused") const bit<8> KIND_HELLO = 4;
@noWarn("unused") const bit<8> KIND_WELCOME = 5;
@noWarn("unused") const bit<8> KIND_NOTICE = 6;
@noWarn("unused") const bit<8> KIND_BYE = 7;
@noWarn("unused") const bit<8> KIND_PROBE = 8;
@noWarn("unused") const bit<8> KIND_ECHO = 9;

@noWarn("unused") const bit<8> FLAG_PASS = 1;
@noWarn("unused") const bit<8> FLAG_CHECKSUM = 2;
@noWarn("unused") const bit<8> FLAG_BARE = 4;
@noWarn("unused") const bit<8> FLAG_LATE = 8;
const bit<8> KNOWN_FLAGS = 15;

@noWarn("unused") const bit<16> REASON_TOO_SHORT = 1;
@noWarn("unused") const bit<16> REASON_BAD_MAGIC = 2;
@noWarn("unused") const bit<16> REASON_VERSION = 3;
@noWarn("unused") const bit<16> REASON_KIND = 4;
@noWarn("unused") const bit<16> REASON_LENGTH = 5;
@noWarn("unused") const bit<16> REASON_CHECKSUM = 6;
@noWarn("unused") const bit<16> REASON_UNKNOWN_JOB = 7;
@noWarn("unused") const bit<16> REASON_GENERATION = 8;
@noWarn("unused") const bit<16> REASON_WORKER_RANGE = 9;
@noWarn("unused") const bit<16> REASON_STRANGER = 10;
@noWarn("unused") const bit<16> REASON_TOKEN = 11;
@noWarn("unused") const bit<16> REASON_SLOT_RANGE = 12;
@noWarn("unused") const bit<16> REASON_ANCIENT = 13;
@noWarn("unused") const bit<16> REASON_FUTURE = 14;
@noWarn("unused") const bit<16> REASON_MISMATCH = 15;
@noWarn("unused") const bit<16> REASON_EVICTED = 16;
@noWarn("unused") const bit<16> REASON_WORKER_LOST = 17;
@noWarn("unused") const bit<16> REASON_WORKER_LEFT = 18;

#endif
