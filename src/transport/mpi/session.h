// What a process has once: MPI itself and the signal that launchers end it by.
#pragma once

namespace contextile {

// Initialises MPI unless somebody has, and then finalises it at exit. Throws InvalidArgument if MPI
// was initialised without MPI_THREAD_MULTIPLE, TransportError if it has been finalised.
void start_mpi();

// A peer died, stopped or did not come: from now on MPI is not finalised at exit.
void note_lost_peer();

// Called by a thread that makes MPI calls for others, first of all. There writing to a peer that
// has died is an error of that write alone: MPIs do not mind that SIGPIPE ends the process by
// default.
void enter_progress_thread();

// While one lives, SIGTERM is noted instead of ending the process, unless the program handles it.
class SigtermWatch {
 public:
  SigtermWatch();
  ~SigtermWatch();
  SigtermWatch(const SigtermWatch&) = delete;
  SigtermWatch& operator=(const SigtermWatch&) = delete;

  // Whether the signal has come in the life of any watch.
  [[nodiscard]] static bool has_come();
};

}  // namespace contextile
