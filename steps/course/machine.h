/// @file
/// The two machines that a step runs on.
#pragma once

namespace course {

enum class Machine { simulated, gpu };

/// As --device and the tables name it: "cpu" (the simulated GPU) or "gpu".
inline const char* name_of(Machine machine) { return machine == Machine::gpu ? "gpu" : "cpu"; }

}  // namespace course
