// IEEE 754 arithmetic as it is by default, whatever the calling thread has set.
//
// torch.set_flush_denormal(True), libraries built with -ffast-math and some audio code switch a thread to flushing
// subnormal numbers, or to another rounding. Ranks that differ in that must not differ in their results.
#pragma once

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace fanin {

#if defined(__SSE2__)
class DefaultFloatingPoint {
 public:
  DefaultFloatingPoint() : callers_(_mm_getcsr()) {
    if (callers_ != DEFAULT) _mm_setcsr(DEFAULT);
  }
  ~DefaultFloatingPoint() {
    if (callers_ != DEFAULT) _mm_setcsr(callers_);
  }
  DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
  DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;

 private:
  // Round to nearest, ties to even; nothing flushed; no exception traps; no exception flag raised yet.
  static constexpr unsigned DEFAULT = 0x1F80;
  const unsigned callers_;
};
#else
struct DefaultFloatingPoint {
  ~DefaultFloatingPoint() {}  // not trivial: an object that only exists draws no warning
};
#endif

}  // namespace fanin
