// The streams over which the HTTP library reads a request and writes its answer.
#pragma once

#include <httplib.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "serving/server/http_chunks.h"
#include "serving/server/http_front.h"

namespace contextile {

// The connection of a request that a thread answers. Reads and writes fail when their time is over.
class SocketStream final : public httplib::Stream {
 public:
  // `in`: the head, and the bytes that came behind it.
  SocketStream(int socket, std::string in, const RequestHead& head, const FrontLimits& limits);

  [[nodiscard]] bool is_readable() const override { return at_ < in_.size(); }
  // Waits for room. Returns false once the client has gone.
  [[nodiscard]] bool is_writable() const override;
  ssize_t read(char* bytes, std::size_t size) override;
  ssize_t write(const char* bytes, std::size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  [[nodiscard]] socket_t socket() const override { return socket_; }

  [[nodiscard]] bool is_gone() const;
  // True if the next request may follow: all of this one was read, and the client goes on, too.
  [[nodiscard]] bool may_go_on() const;
  // True if the body was in chunks that are malformed.
  [[nodiscard]] bool is_malformed() const { return chunks_.is_malformed(); }
  // The bytes behind this request.
  [[nodiscard]] std::string rest() const { return in_.substr(at_); }

 private:
  using Clock = std::chrono::steady_clock;

  // Reads more of the body, before its time is over.
  [[nodiscard]] bool fill();
  ssize_t read_chunks(char* bytes, std::size_t size);
  [[nodiscard]] bool wait_for_room() const;

  const int socket_;
  const FrontLimits& limits_;
  std::string in_;
  std::size_t at_ = 0;
  std::size_t head_bytes_;  // of `in_`
  const Clock::time_point body_limit_;
  std::uint64_t body_left_;
  const bool is_chunked_;
  const bool closes_;
  ChunkReader chunks_;
  std::string chunk_bytes_;  // of the body, as the library reads them
  std::size_t chunk_at_ = 0;
  mutable bool is_broken_ = false;
};

// A head whose response the front sends.
class MemoryStream final : public httplib::Stream {
 public:
  explicit MemoryStream(std::string_view in) : in_(in) {}

  [[nodiscard]] bool is_readable() const override { return !in_.empty(); }
  [[nodiscard]] bool is_writable() const override { return true; }
  ssize_t read(char* bytes, std::size_t size) override {
    const std::size_t count = std::min(size, in_.size());
    std::copy_n(in_.data(), count, bytes);
    in_.remove_prefix(count);
    return static_cast<ssize_t>(count);
  }
  ssize_t write(const char* bytes, std::size_t size) override {
    out.append(bytes, size);
    return static_cast<ssize_t>(size);
  }
  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    ip.clear();
    port = 0;
  }
  void get_local_ip_and_port(std::string& ip, int& port) const override {
    get_remote_ip_and_port(ip, port);
  }
  [[nodiscard]] socket_t socket() const override { return INVALID_SOCKET; }

  std::string out;

 private:
  std::string_view in_;
};

}  // namespace contextile
