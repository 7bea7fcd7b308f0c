// One function per instruction set, chosen when it is first called; for sums and products alone, so all give the same
// bits. A sanitizer's runtime is not up yet when such a choice is made.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(FANIN_SANITIZED)
#define FANIN_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FANIN_CLONES
#endif
