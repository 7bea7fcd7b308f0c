// Rules for native state that Python reaches. The GIL is the lock of every object of these files, and it is lost
// wherever Python code may run: at each call and attribute of a Python object, at each reference dropped (a destructor
// may be Python), at each object made that the garbage collector tracks, and in without_gil(). Hence:
//
// * No container may be in use at such a point. An object to be dropped is first moved out of its container; objects
//   for Python are first collected in C++.
// * Code without the GIL uses only objects with locks of their own (SwitchServer, WorkerEngine, Wires), and never waits
//   for the GIL while it holds such a lock. Therefore the GIL may be held while waiting for one of them.
// * Machines have no lock and are never called without the GIL.
// * A method's object outlives the call: its caller holds a reference. `close` may come at any time, twice, and at once
//   from two threads; every call that waits then returns, and later calls do nothing.
// * Objects inherited through fork() are neither used nor ended (process_owned.hpp).
#pragma once

#include <pybind11/pybind11.h>

#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

namespace fanin {

// Calls `call` without the GIL. The GIL is not taken back in a destructor, as pybind11 does it: while the interpreter
// ends, taking the GIL ends the thread by unwinding its stack, and a destructor must not be unwound.
template <typename Call>
auto without_gil(Call&& call) -> std::invoke_result_t<Call> {
  using Result = std::invoke_result_t<Call>;
  std::exception_ptr failed;
  PyThreadState* const state = PyEval_SaveThread();
  if constexpr (std::is_void_v<Result>) {
    try {
      call();
    } catch (...) {
      failed = std::current_exception();
    }
    PyEval_RestoreThread(state);
    if (failed) std::rethrow_exception(failed);
  } else {
    std::optional<Result> result;
    try {
      result.emplace(call());
    } catch (...) {
      failed = std::current_exception();
    }
    PyEval_RestoreThread(state);
    if (failed) std::rethrow_exception(failed);
    return std::move(*result);
  }
}

}  // namespace fanin
