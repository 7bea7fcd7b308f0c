/* How large everything is: the one place to change, or to set on the compiler's command line (-DWORDS_PER_PACKET=64).
 *
 * Memory of the v1model program: a ring entry takes 4 bytes per word, 128 for codes, 23 for its facts; a slot takes 13.
 * A job with S = 0 uses two entries per slot, one that may get to S = S_max uses S_max + 2. */
#ifndef FANIN_SIZES_P4
#define FANIN_SIZES_P4

#ifndef WORDS_PER_PACKET
#define WORDS_PER_PACKET 256
#endif
/* Slots of all jobs together. */
#ifndef SLOT_COUNT
#define SLOT_COUNT 4096
#endif
/* Ring entries of all jobs together: each slot of a job has as many as the job's history is deep. */
#ifndef ENTRY_COUNT
#define ENTRY_COUNT 16384
#endif
/* Jobs admitted at once (flows count, each is a job of its own). Row 0 stands for "no job" in the counters. */
#ifndef JOB_ROWS
#define JOB_ROWS 64
#endif
/* Workers of all jobs together. */
#ifndef MEMBER_COUNT
#define MEMBER_COUNT 1024
#endif
/* Hosts whose other traffic is forwarded. */
#ifndef HOST_COUNT
#define HOST_COUNT 1024
#endif
/* Port of the controller; must be BMv2's --cpu-port. */
#ifndef CPU_PORT
#define CPU_PORT 510
#endif
/* Instance numbers of multicast replicas: w + 1 for worker w's result, BARE_INSTANCE + w for a bare answer to it. */
#define BARE_INSTANCE 0x100

#endif
