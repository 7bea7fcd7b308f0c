// FANIN_CLONES compiles a function once per instruction set, and picks one before its first call. Only for sums and
// products, so that all variants give the same bits. Not with sanitizers, whose runtime is not ready for that choice.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(FANIN_SANITIZED)
#define FANIN_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FANIN_CLONES
#endif
