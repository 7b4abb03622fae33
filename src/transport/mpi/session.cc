#include "transport/mpi/session.h"

#include <mpi.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "transport/mpi/mpi_call.h"

namespace contextile {
namespace {

// NOTE: these are process-wide, like the things that they stand for.
std::mutex process_mutex;
int num_watches = 0;
struct sigaction before_watch {};
std::atomic<bool> sigterm_came = false;  // set in a signal handler, read in other threads
static_assert(std::atomic<bool>::is_always_lock_free);
std::atomic<bool> finalizes_at_exit = false;
std::atomic<bool> lost_peer = false;
bool ends_orderly = false;  // end_at_exit is registered
thread_local bool in_progress_thread = false;

// Open MPI's launcher kills all processes as soon as one ends in failure, or while it waits for
// them to obey SIGTERM. So the first process must not end before the others have said why they end.
constexpr std::chrono::milliseconds kLastWords{500};

extern "C" void note_sigterm(int /*signal*/) { sigterm_came = true; }

bool finalized() {
  int done = 0;
  check_mpi(MPI_Finalized(&done), "MPI_Finalized");
  return done != 0;
}

// Finalises MPI if it can: MPI_Finalize would wait forever for a lost peer, and a progress thread
// ends the program only if an MPI gives up inside a call. Errors are ignored because
// nothing is left that could report them.
void end_at_exit() {
  int done = 0;
  if (lost_peer || sigterm_came || in_progress_thread) {
    std::this_thread::sleep_for(kLastWords);
  } else if (finalizes_at_exit && MPI_Finalized(&done) == MPI_SUCCESS && done == 0) {
    static_cast<void>(MPI_Finalize());
  }
}

}  // namespace

void start_mpi() {
  const std::lock_guard<std::mutex> lock(process_mutex);
  if (finalized()) throw TransportError("expected MPI to run, found that it has been finalised");
  int initialized = 0;
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Initialized(&initialized), "MPI_Initialized");
  if (initialized != 0) {
    check_mpi(MPI_Query_thread(&provided), "MPI_Query_thread");
  } else {
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
    check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN),
              "MPI_Comm_set_errhandler");
    finalizes_at_exit = true;
  }
  if (!ends_orderly) ends_orderly = std::atexit(end_at_exit) == 0;
  CONTEXTILE_CHECK(provided == MPI_THREAD_MULTIPLE,
                   "MPI: expected MPI_THREAD_MULTIPLE ({}), found thread level {}",
                   MPI_THREAD_MULTIPLE, provided);
}

void note_lost_peer() { lost_peer = true; }

void enter_progress_thread() {
  in_progress_thread = true;
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

SigtermWatch::SigtermWatch() {
  const std::lock_guard<std::mutex> lock(process_mutex);
  if (num_watches++ > 0) return;
  if (sigaction(SIGTERM, nullptr, &before_watch) != 0 || before_watch.sa_handler != SIG_DFL) return;
  struct sigaction noting {};
  noting.sa_handler = note_sigterm;
  noting.sa_flags = SA_RESTART;
  sigemptyset(&noting.sa_mask);
  sigaction(SIGTERM, &noting, nullptr);
}

SigtermWatch::~SigtermWatch() {
  const std::lock_guard<std::mutex> lock(process_mutex);
  if (--num_watches > 0) return;
  struct sigaction now {};
  if (sigaction(SIGTERM, nullptr, &now) != 0 || now.sa_handler != note_sigterm) return;
  // NOTE: once the signal has come, it stays noted. The launcher sends it again, and the program
  // has yet to print why it ends.
  if (!sigterm_came) sigaction(SIGTERM, &before_watch, nullptr);
}

bool SigtermWatch::has_come() { return sigterm_came; }

}  // namespace contextile
