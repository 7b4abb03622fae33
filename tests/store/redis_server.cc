#include "store/redis_server.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include "support/free_port.h"

extern char** environ;

namespace contextile {
namespace {

std::string program() {
  const char* path = std::getenv("PATH");
  std::stringstream folders(path == nullptr ? "/usr/bin:/bin" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string file = folder + "/redis-server";
    if (::access(file.c_str(), X_OK) == 0) return file;
  }
  return "";
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "contextile_store_XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code none;
  std::filesystem::remove_all(path_, none);
}

bool RedisServer::available() { return !program().empty(); }

RedisServer::RedisServer(std::vector<std::string> options)
    : options_(std::move(options)), port_(free_port()) {
  start();
}

RedisServer::~RedisServer() { kill(); }

std::string RedisServer::address() const { return "redis://127.0.0.1:" + std::to_string(port_); }

std::string RedisServer::unix_address() const {
  return "redis+unix://" + folder_.path() + "/socket";
}

// The store waits for the server, so this does not.
void RedisServer::start() {
  std::vector<std::string> words = {program(),
                                    "--port",
                                    std::to_string(port_),
                                    "--bind",
                                    "127.0.0.1",
                                    "--unixsocket",
                                    folder_.path() + "/socket",
                                    "--dir",
                                    folder_.path(),
                                    "--save",
                                    "",
                                    "--appendonly",
                                    "no",
                                    "--daemonize",
                                    "no"};
  words.insert(words.end(), options_.begin(), options_.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t quiet;
  posix_spawn_file_actions_init(&quiet);
  posix_spawn_file_actions_addopen(&quiet, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&quiet, STDOUT_FILENO, STDERR_FILENO);
  const int error =
      ::posix_spawn(&process_, arguments[0], &quiet, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&quiet);
  if (error != 0) throw std::runtime_error("cannot start redis-server");
}

void RedisServer::kill() {
  if (process_ <= 0) return;
  ::kill(process_, SIGKILL);
  ::waitpid(std::exchange(process_, -1), nullptr, 0);
}

void RedisServer::stop_answering() { ::kill(process_, SIGSTOP); }
void RedisServer::answer_again() { ::kill(process_, SIGCONT); }

}  // namespace contextile
