// Connections of an HTTP server: reads the heads of requests within limits of size and time, and
// hands requests to threads.
//
// One thread, the front, owns every connection that no request is being answered on: it accepts,
// reads heads, refuses what is malformed, answers the paths given to answer_at_once by itself, and
// closes what is idle. A request then belongs to one of max_active threads until it is answered,
// and its connection returns to the front. So neither silent nor slow connections hold a thread.
#pragma once

#include <httplib.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "serving/server/http_head.h"

namespace contextile {

struct FrontLimits {
  HeadLimits head;
  std::size_t max_active = 64;         // requests that are answered at a time
  std::size_t max_queued = 512;        // requests that wait for a thread; more are answered 503
  std::size_t max_connections = 4096;  // open; then the one idle the longest is closed
  std::chrono::milliseconds head_time{10'000};   // from the first byte of a head to its end
  std::chrono::milliseconds body_time{30'000};   // from the end of the head to the end of the body
  std::chrono::milliseconds idle_time{75'000};   // between two requests
  std::chrono::milliseconds write_time{30'000};  // without a byte taken by the client
};

class HttpFront : public httplib::Server {
 public:
  using Clock = std::chrono::steady_clock;
  // The body of the answer to a request that is refused.
  using ErrorBody = std::function<std::string(int status, const std::string& message)>;

  HttpFront(const FrontLimits& limits, ErrorBody error_body);
  ~HttpFront() override;

  // The front itself answers GET requests for these paths, at any load.
  void answer_at_once(std::set<std::string> paths) { at_once_ = std::move(paths); }

  // Serves the address that bind_to_port or bind_to_any_port took.
  void start();
  // Closes idle connections; requests under way have `grace` to send the rest of their answers.
  void close(std::chrono::milliseconds grace);

  // True if the client of the request that this thread answers has closed its connection. False in
  // other threads.
  [[nodiscard]] static bool client_is_gone();
  // True if the body of that request was in chunks that are malformed.
  [[nodiscard]] static bool chunks_are_malformed();

 private:
  enum class State : std::uint8_t { kReading, kWriting, kLingering };
  struct Connection {
    std::string in;
    std::string out;
    std::size_t num_out = 0;       // bytes of `out` that were sent
    std::size_t num_searched = 0;  // bytes of `in` in which no head ends
    bool closes = false;           // when `out` is sent
    bool has_begun = false;        // a head, of which there is at least one byte
    State state = State::kReading;
    Clock::time_point limit;
  };
  struct Job {
    int socket = -1;
    std::string in;  // the head and what came behind it
    RequestHead head;
  };
  // A connection that a thread has answered on.
  struct Answered {
    int socket = -1;
    std::string rest;      // bytes behind the request
    bool lingers = false;  // no request follows; the client reads the answer and closes
  };

  void run_front();
  void serve_connections();
  [[nodiscard]] std::chrono::milliseconds time_to_next_limit() const;
  void accept_all();
  void make_room();
  void take_answered();
  void go_on(Answered& answered);
  void close_expired();
  void start_reading(Connection& connection) const;
  static void start_lingering(int socket, Connection& connection);
  // Each returns false if the connection is to be closed.
  bool advance(int socket, Connection& connection, short events);
  bool read_some(int socket, Connection& connection);
  bool write_some(int socket, Connection& connection);
  // Starts on the request whose head is complete, if there is one. Returns true if the connection
  // has gone to a thread.
  bool take_request(int socket, Connection& connection);
  void refuse(Connection& connection, const HeadProblem& problem);
  void answer_here(Connection& connection, std::size_t size, bool closes);

  void run_worker();
  void serve(Job job);
  [[nodiscard]] bool process(httplib::Stream& stream);
  void give_back(Answered answered);
  void wake();

  const FrontLimits limits_;
  const ErrorBody error_body_;
  std::set<std::string> at_once_;
  int wake_[2] = {-1, -1};
  std::thread front_;
  std::vector<std::thread> workers_;

  std::map<int, Connection> connections_;  // of the front, by socket
  Clock::time_point accept_again_{};       // after the process ran out of descriptors

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::set<int> serving_;  // sockets of requests that threads answer
  std::vector<Answered> answered_;
  bool closing_ = false;
};

}  // namespace contextile
