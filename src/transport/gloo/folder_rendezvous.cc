// A rendezvous in a folder that all ranks see. A rank makes its file in one step, so that no other
// rank reads half of it and no rank number is taken twice.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "transport/gloo/rendezvous.h"

namespace contextile {
namespace {

constexpr std::chrono::milliseconds kPollInterval{10};  // no notification works on every network

std::optional<std::string> contents_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Returns the run as part of a file name: letters and digits stay as they are.
std::string name_of(std::string_view run_id) {
  std::string name;
  for (const char c : run_id) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    name += plain ? std::string(1, c) : fmt::format("_{:02x}", static_cast<unsigned char>(c));
  }
  return name;
}

class FolderRendezvous : public Rendezvous {
 public:
  FolderRendezvous(const GlooOptions& options, const std::string& folder)
      : rank_(options.rank),
        timeout_(options.connect_timeout),
        deadline_(Clock::now() + options.connect_timeout),
        prefix_(fmt::format("{}/{}", folder, name_of(options.run_id))) {}
  ~FolderRendezvous() override { remove_mine(); }
  FolderRendezvous(const FolderRendezvous&) = delete;
  FolderRendezvous& operator=(const FolderRendezvous&) = delete;

  [[nodiscard]] std::vector<Introduction> exchange(const Introduction& mine) override {
    try {
      publish(mine);
      return collect(mine);
    } catch (const TransportError& error) {
      // Lets the others stop waiting for a group that cannot come about.
      static_cast<void>(make_file(failure_path(), error.what()));
      throw;
    }
  }
  void complete() override { remove_mine(); }

 private:
  [[nodiscard]] std::string path_of(Rank rank) const {
    return fmt::format("{}.rank-{}", prefix_, rank.value);
  }
  [[nodiscard]] std::string failure_path() const { return prefix_ + ".failed"; }

  // Makes a file in one step. Returns false if it exists already.
  [[nodiscard]] bool make_file(const std::string& path, const std::string& text) const {
    const std::string draft =
        fmt::format("{}.draft-{}-{}", path, ::getpid(), Clock::now().time_since_epoch().count());
    std::ofstream file(draft, std::ios::binary);
    file << text;
    file.close();
    const bool written = !file.fail();
    const int error = written && ::link(draft.c_str(), path.c_str()) == 0 ? 0 : errno;
    ::unlink(draft.c_str());
    if (written && error == EEXIST) return false;
    if (!written || error != 0) {
      throw TransportError(fmt::format("rank {}, rendezvous: cannot write {}: {}", rank_.value,
                                       path, std::strerror(error)));
    }
    return true;
  }

  void publish(const Introduction& mine) {
    is_mine_ = make_file(path_of(rank_), mine.text());
    if (is_mine_) return;
    throw TransportError(
        fmt::format("rank {}, rendezvous: expected one process per rank, found {} of another: two "
                    "processes with this number, or an earlier run '{}'",
                    rank_.value, path_of(rank_), mine.run_id));
  }

  [[nodiscard]] std::vector<Introduction> collect(const Introduction& mine) const {
    std::vector<Introduction> all(static_cast<std::size_t>(mine.size));
    all[rank_.index()] = mine;
    while (true) {
      std::vector<std::int32_t> missing;
      for (std::int32_t r = 0; r < mine.size; ++r) {
        Introduction& other = all[static_cast<std::size_t>(r)];
        if (!other.rank.valid() && !read(Rank{r}, mine, other)) missing.push_back(r);
      }
      if (missing.empty()) return all;
      if (const auto failure = contents_of(failure_path())) {
        throw TransportError(fmt::format("rank {}, rendezvous: a rank has failed: {} ({})",
                                         rank_.value, *failure, failure_path()));
      }
      if (Clock::now() >= deadline_) {
        throw TransportError(fmt::format("rank {}, rendezvous: {} did not come to {} in {} ms",
                                         rank_.value, list_of_ranks(missing, mine.size), prefix_,
                                         timeout_.count()));
      }
      std::this_thread::sleep_for(kPollInterval);
    }
  }

  [[nodiscard]] bool read(Rank rank, const Introduction& mine, Introduction& other) const {
    const auto text = contents_of(path_of(rank));
    if (!text) return false;
    const auto found = Introduction::parse(*text);
    if (!found || found->rank != rank) {
      throw TransportError(fmt::format("rank {}, rendezvous: expected rank {}'s address, found {}",
                                       rank_.value, rank.value, path_of(rank)));
    }
    check_fits(mine, *found);
    other = *found;
    return true;
  }

  void remove_mine() {
    if (std::exchange(is_mine_, false)) ::unlink(path_of(rank_).c_str());
  }

  const Rank rank_;
  const std::chrono::milliseconds timeout_;
  const Clock::time_point deadline_;
  const std::string prefix_;
  bool is_mine_ = false;  // this rank's file was made by this process and still exists
};

}  // namespace

std::unique_ptr<Rendezvous> open_folder(const GlooOptions& options, const std::string& folder) {
  struct stat status {};
  CONTEXTILE_CHECK(::stat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode),
                   "gloo: expected a folder for the rendezvous, found '{}'", folder);
  CONTEXTILE_CHECK(!options.run_id.empty(),
                   "gloo: expected the id of this run for the rendezvous in {}, found none",
                   folder);
  return std::make_unique<FolderRendezvous>(options, folder);
}

}  // namespace contextile
