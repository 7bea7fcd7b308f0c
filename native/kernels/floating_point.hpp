// IEEE 754 arithmetic as it is by default, whatever the calling thread has set.
//
// torch.set_flush_denormal(True), libraries built with -ffast-math and some audio code switch a thread to flushing
// subnormal numbers, or to another rounding. Ranks that differ in that must not differ in their results.
//
// Reading the control register waits for all earlier arithmetic, and so for the memory that this reads: a tensor's,
// which is in no cache. A caller that runs kernels for many packets therefore holds one object around all of them, and
// the kernels' own objects then do nothing.
#pragma once

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace fanin {

#if defined(__SSE2__)
class DefaultFloatingPoint {
 public:
  DefaultFloatingPoint() {
    if (inside_) return;
    inside_ = outermost_ = true;
    callers_ = _mm_getcsr();
    if ((callers_ & ~FLAGS) != DEFAULT) _mm_setcsr(DEFAULT);
  }
  ~DefaultFloatingPoint() {
    if (!outermost_) return;
    inside_ = false;
    if ((callers_ & ~FLAGS) != DEFAULT) _mm_setcsr(callers_);
  }
  DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
  DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;

 private:
  // Round to nearest, ties to even; nothing flushed; no exception traps.
  static constexpr unsigned DEFAULT = 0x1F80;
  static constexpr unsigned FLAGS = 0x3F;  // flags of raised exceptions, which change no result
  constinit static inline thread_local bool inside_ = false;
  bool outermost_ = false;
  unsigned callers_ = DEFAULT;
};
#else
struct DefaultFloatingPoint {
  ~DefaultFloatingPoint() {}  // not trivial: an object that only exists draws no warning
};
#endif

}  // namespace fanin
