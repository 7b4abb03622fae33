// A rendezvous in a folder that all ranks see. A rank makes its file in one step, so that no other
// rank reads half of it and no rank number is taken twice.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/interrupt.h"
#include "base/new_file.h"
#include "base/quote.h"
#include "transport/gloo/frame.h"
#include "transport/gloo/rendezvous.h"
#include "transport/gloo/secret.h"

namespace contextile {
namespace {

constexpr std::chrono::milliseconds kPollInterval{10};  // no notification works on every network

// More than any file of a rank has.
constexpr std::size_t kMaxFileBytes = std::size_t{1} << 16;

std::optional<std::string> contents_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text(kMaxFileBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

class FolderRendezvous : public Rendezvous {
 public:
  FolderRendezvous(const std::string& folder, const Member& member,
                   std::chrono::milliseconds timeout)
      : member_(member),
        rank_(member.rank),
        timeout_(timeout),
        deadline_(Clock::now() + timeout),
        prefix_(fmt::format("{}/{}", folder, public_name_of(member.run_id))) {}
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
    } catch (...) {
      static_cast<void>(make_file(
          failure_path(), fmt::format("rank {} gave up: {}", rank_.value, interrupt_text())));
      throw;
    }
  }
  void complete() override { remove_mine(); }

 private:
  [[nodiscard]] std::string path_of(Rank rank) const {
    return fmt::format("{}.rank-{}", prefix_, rank.value);
  }
  [[nodiscard]] std::string code_of_file(std::string_view text) const {
    return code_of(member_.secret, {"folder", member_.run_id, text});
  }
  [[nodiscard]] std::string failure_path() const { return prefix_ + ".failed"; }

  // Makes a file in one step. Returns false if it exists already.
  [[nodiscard]] bool make_file(const std::string& path, const std::string& text) const {
    const NewFile draft = make_new_file(path + ".draft-", "", kReadWriteForAll);
    int error = draft.error;
    if (draft.descriptor >= 0) {
      error = write_and_close(draft, text);
      const bool is_written = error == 0;
      if (is_written && ::link(draft.path.c_str(), path.c_str()) != 0) error = errno;
      ::unlink(draft.path.c_str());
      if (is_written && error == EEXIST) return false;
    }
    if (error != 0) {
      throw TransportError(fmt::format("rank {}, rendezvous: cannot write {}: {}", rank_.value,
                                       path, std::strerror(error)));
    }
    return true;
  }

  void publish(const Introduction& mine) {
    const std::string text = mine.text();
    is_mine_ = make_file(path_of(rank_), code_of_file(text) + text);
    if (is_mine_) return;
    throw TransportError(
        fmt::format("rank {}, rendezvous: expected one process per rank, found {} of another: two "
                    "processes with this number, or an earlier run with this id",
                    rank_.value, path_of(rank_)));
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
        throw TransportError(
            fmt::format("rank {}, rendezvous: a rank has failed: {} ({})", rank_.value,
                        without_orders(failure->substr(0, kMostWordsOfPeers)), failure_path()));
      }
      if (Clock::now() >= deadline_) {
        throw TransportError(fmt::format("rank {}, rendezvous: {} did not come to {} in {} ms",
                                         rank_.value, list_of_ranks(missing, mine.size), prefix_,
                                         timeout_.count()));
      }
      sleep_for(kPollInterval);
    }
  }

  [[nodiscard]] bool read(Rank rank, const Introduction& mine, Introduction& other) const {
    const auto text = contents_of(path_of(rank));
    if (!text) return false;
    const std::string_view introduction =
        std::string_view(*text).substr(std::min(kCodeBytes, text->size()));
    const auto found = Introduction::parse(introduction);
    if (!found || found->rank != rank) {
      throw TransportError(fmt::format("rank {}, rendezvous: expected rank {}'s address, found {}",
                                       rank_.value, rank.value, path_of(rank)));
    }
    if (!same_code(std::string_view(*text).substr(0, kCodeBytes), code_of_file(introduction))) {
      throw TransportError(fmt::format(
          "rank {}, rendezvous: expected {} of a rank with {}, found the file of a rank with {} "
          "secret",
          rank_.value, path_of(rank), member_.secret.empty() ? "no secret" : "the same secret",
          member_.secret.empty() ? "a" : "another"));
    }
    check_fits(mine, *found);
    other = *found;
    return true;
  }

  void remove_mine() {
    if (std::exchange(is_mine_, false)) ::unlink(path_of(rank_).c_str());
  }

  const Member member_;
  const Rank rank_;
  const std::chrono::milliseconds timeout_;
  const Clock::time_point deadline_;
  const std::string prefix_;
  bool is_mine_ = false;  // this rank's file was made by this process and still exists
};

}  // namespace

std::unique_ptr<Rendezvous> open_folder(const std::string& folder, const Member& member,
                                        std::chrono::milliseconds timeout) {
  struct stat status {};
  CONTEXTILE_CHECK(::stat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode),
                   "gloo: expected a folder for the rendezvous, found '{}'", folder);
  CONTEXTILE_CHECK(!member.run_id.empty(),
                   "gloo: expected the id of this run for the rendezvous in {}, found none",
                   folder);
  return std::make_unique<FolderRendezvous>(folder, member, timeout);
}

}  // namespace contextile
