// A Redis server of a test's own, in a folder of its own.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace contextile {

// A new folder under the temporary one, removed with all that is in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class RedisServer {
 public:
  // True if there is a redis-server to start.
  [[nodiscard]] static bool available();

  // Starts one on a free port of this machine and on a socket; `options` as redis-server takes
  // them. It is killed at the end.
  explicit RedisServer(std::vector<std::string> options = {});
  ~RedisServer();
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;

  [[nodiscard]] std::string address() const;       // redis://127.0.0.1:PORT
  [[nodiscard]] std::string unix_address() const;  // redis+unix:///…
  [[nodiscard]] std::int32_t port() const { return port_; }

  void kill();   // at once, with all it knew
  void start();  // at the same places
  void stop_answering();
  void answer_again();

 private:
  TemporaryFolder folder_;
  std::vector<std::string> options_;
  std::int32_t port_ = 0;
  pid_t process_ = -1;
};

}  // namespace contextile
