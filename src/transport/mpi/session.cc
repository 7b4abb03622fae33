#include "transport/mpi/session.h"

#include <mpi.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/interrupt.h"
#include "base/process_owner.h"
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
bool ends_orderly = false;            // end_at_exit is registered
std::optional<ProcessOwner> process;  // that initialised MPI here
bool is_forked() { return process && process->is_forked(); }
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

// The thread that initialises MPI, and finalises it, too, because MPI wants one thread for both. In
// MPI_Init it waits for all processes of the job, as long as that takes; others wait for it only
// for a time. Never destroyed, because that thread may stay in MPI for good.
class MpiThread {
 public:
  struct Outcome {
    int code = MPI_SUCCESS;
    int provided = MPI_THREAD_SINGLE;
  };

  // Returns nothing if MPI_Init does not come to its end in that time.
  std::optional<Outcome> init(std::chrono::milliseconds timeout) {
    Lock lock(mutex_);
    if (!started_) std::thread([this] { run(); }).detach();
    started_ = true;
    static_cast<void>(wait_until(changed_, lock, Clock::now() + timeout,
                                 [this] { return outcome_.has_value(); }));
    return outcome_;
  }
  void finalize() {
    Lock lock(mutex_);
    shall_finalize_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return finalized_; });
  }

 private:
  using Lock = std::unique_lock<std::mutex>;

  void run() {
    Outcome outcome;
    outcome.code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &outcome.provided);
    Lock lock(mutex_);
    outcome_ = outcome;
    changed_.notify_all();
    changed_.wait(lock, [this] { return shall_finalize_; });
    lock.unlock();
    static_cast<void>(MPI_Finalize());  // nothing is left that could report an error
    lock.lock();
    finalized_ = true;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool started_ = false;
  std::optional<Outcome> outcome_;
  bool shall_finalize_ = false;
  bool finalized_ = false;
};
MpiThread& mpi_thread() {
  static auto* const kThread = new MpiThread;
  return *kThread;
}

// Finalises MPI if it can: MPI_Finalize would wait forever for a lost peer, and a progress thread
// ends the program only if an MPI gives up inside a call. A child made by fork has no part in MPI.
void end_at_exit() {
  int done = 0;
  if (is_forked()) return;
  if (lost_peer || sigterm_came || in_progress_thread) {
    std::this_thread::sleep_for(kLastWords);
  } else if (finalizes_at_exit && MPI_Finalized(&done) == MPI_SUCCESS && done == 0) {
    mpi_thread().finalize();
  }
}

}  // namespace

void start_mpi(std::chrono::milliseconds timeout) {
  const std::lock_guard<std::mutex> lock(process_mutex);
  if (finalized()) throw TransportError("expected MPI to run, found that it has been finalised");
  int initialized = 0;
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Initialized(&initialized), "MPI_Initialized");
  if (initialized != 0) {
    check_mpi(MPI_Query_thread(&provided), "MPI_Query_thread");
  } else {
    if (!ends_orderly) ends_orderly = std::atexit(end_at_exit) == 0;
    process.emplace();
    const std::optional<MpiThread::Outcome> outcome = mpi_thread().init(timeout);
    if (!outcome) {
      note_lost_peer();
      throw TransportError(fmt::format(
          "MPI_Init: expected all processes of the job in {} ms, found that one did not come: it "
          "has stopped, or does not call MPI",
          timeout.count()));
    }
    check_mpi(outcome->code, "MPI_Init_thread");
    provided = outcome->provided;
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
  if (is_forked()) return;
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
