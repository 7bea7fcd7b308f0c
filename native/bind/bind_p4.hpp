// Kept apart from bind.hpp, which every other binding includes.
#pragma once

#include <pybind11/pybind11.h>

namespace fanin {

void bind_p4(pybind11::module_& module);

}  // namespace fanin
