// The state that a process has once: MPI itself, and the signal by which launchers end the process.
#pragma once

#include <chrono>

namespace contextile {

// Initialises MPI unless that has been done, and then finalises it at exit. Throws InvalidArgument
// if MPI was initialised without MPI_THREAD_MULTIPLE. Throws TransportError if it has been
// finalised, and if a process of the job has stopped or does not come in that time.
void start_mpi(std::chrono::milliseconds timeout);

// Notes that a peer died, stopped or did not come. From now on MPI is not finalised at exit.
void note_lost_peer();

// Prepares a thread that makes MPI calls for others; the thread calls it first. In such a thread,
// writing to a peer that has died is only an error of that write. MPIs do not prevent SIGPIPE from
// ending the process, which it does by default.
void enter_progress_thread();

// While an object of this class lives, SIGTERM is noted instead of ending the process, unless the
// program handles it.
class SigtermWatch {
 public:
  SigtermWatch();
  ~SigtermWatch();
  SigtermWatch(const SigtermWatch&) = delete;
  SigtermWatch& operator=(const SigtermWatch&) = delete;

  // Returns true if the signal has come during the life of any watch.
  [[nodiscard]] static bool has_come();
};

}  // namespace contextile
