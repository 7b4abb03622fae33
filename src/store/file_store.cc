// Values as files of a folder. Readers need no lock: a value appears and goes in one step. Writers
// hold the folder's lock, which the system releases when a process ends, however it ends.

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/interrupt.h"
#include "base/new_file.h"
#include "base/quote.h"
#include "store/implementations.h"
#include "store/value_file.h"

namespace contextile {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr std::int64_t kSweepInterval = 256;
constexpr auto kDraftLife = std::chrono::minutes(10);  // writing one value takes less
constexpr std::string_view kDraftPrefix = "draft-";
constexpr std::string_view kValuePrefix = "v-";

std::int64_t now_ms() {
  return std::chrono::duration_cast<milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Keeps letters, digits, - and _ as they are: no key leads out of the folder.
std::string file_name_of(std::string_view key) {
  std::string name(kValuePrefix);
  for (const char c : key) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       c == '-' || c == '_';
    name += plain ? std::string(1, c) : fmt::format("%{:02x}", static_cast<unsigned char>(c));
  }
  return name;
}

class Descriptor {
 public:
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  ~Descriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Descriptor(Descriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  [[nodiscard]] int get() const { return descriptor_; }
  [[nodiscard]] bool valid() const { return descriptor_ >= 0; }
  // Returns false on errors, too, that a write-back file system only reports at the end.
  [[nodiscard]] bool close() { return ::close(std::exchange(descriptor_, -1)) == 0; }

 private:
  int descriptor_;
};

Descriptor open_file(const std::string& path, int flags) {
  int descriptor = -1;
  do {
    descriptor = ::open(path.c_str(), flags | O_CLOEXEC, kReadWriteForAll);
  } while (descriptor < 0 && errno == EINTR);
  return Descriptor(descriptor);
}

bool write_all(int descriptor, std::span<const std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return true;
}

// Returns how many bytes were read, or -1.
std::int64_t read_all(int descriptor, std::span<std::uint8_t> bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t found = ::read(descriptor, bytes.data() + done, bytes.size() - done);
    if (found < 0 && errno == EINTR) continue;
    if (found < 0) return -1;
    if (found == 0) break;
    done += static_cast<std::size_t>(found);
  }
  return static_cast<std::int64_t>(done);
}

// An open value: its header, and its bytes, still to be read.
struct OpenValue {
  Descriptor file;
  ValueHeader header;
  std::string path;

  [[nodiscard]] bool lives() const { return header.end_ms > now_ms(); }
  [[nodiscard]] StoreValue bytes() const {
    StoreValue value(header.value_bytes);
    const std::int64_t found = read_all(file.get(), value);
    if (found < 0) fail_io("{}: cannot read: {}", path, std::strerror(errno));
    if (std::cmp_not_equal(found, value.size())) {
      fail_io("{}: expected a value of {} bytes, found {}", path, value.size(), found);
    }
    return value;
  }
};

// Returns nothing if there is no such file.
std::optional<OpenValue> open_value(const std::string& path) {
  Descriptor file = open_file(path, O_RDONLY | O_NONBLOCK);  // a pipe would wait for its other end
  if (!file.valid() && errno == ENOENT) return std::nullopt;
  struct stat status {};
  if (!file.valid() || ::fstat(file.get(), &status) != 0) {
    fail_io("{}: cannot open: {}", path, std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) fail_io("{}: expected a regular file", path);
  std::array<std::uint8_t, ValueHeader::kBytes> first{};
  const std::int64_t found = read_all(file.get(), first);
  if (found < 0) fail_io("{}: cannot read: {}", path, std::strerror(errno));
  const ValueHeader header =
      decode_value_header(std::span(first).first(static_cast<std::size_t>(found)),
                          static_cast<std::uint64_t>(status.st_size), path);
  return OpenValue{std::move(file), header, path};
}

class FileStore : public Store {
 public:
  FileStore(std::string folder, const StoreOptions& options)
      : folder_(std::move(folder)), name_("file://" + folder_), timeout_(options.timeout) {
    const Descriptor lock = hold("open", "");
    sweep();
  }

  [[nodiscard]] std::string_view name() const override { return name_; }

 protected:
  [[nodiscard]] bool do_put(Key key, Bytes value, Milliseconds expiry) override {
    Draft draft = write_draft("put", key, value, expiry);
    const Descriptor lock = hold("put", key);
    if (find(key)) return false;
    place(draft, "put", key);
    return true;
  }

  void do_replace(Key key, Bytes value, Milliseconds expiry) override {
    Draft draft = write_draft("replace", key, value, expiry);
    const Descriptor lock = hold("replace", key);
    place(draft, "replace", key);
  }

  [[nodiscard]] std::optional<StoreValue> do_get(Key key) override {
    const std::optional<OpenValue> value = find(key);
    if (!value) return std::nullopt;
    return value->bytes();
  }

  [[nodiscard]] std::optional<StoreValue> do_pull(Key key, Milliseconds timeout) override {
    // Notifications do not work on every network, so it looks at ever longer intervals, the last
    // time at the deadline.
    constexpr milliseconds kLongestPause{20};
    const Clock::time_point deadline = Clock::now() + timeout;
    for (milliseconds pause{1};; pause = std::min(2 * pause, kLongestPause)) {
      if (std::optional<StoreValue> value = do_get(key)) return value;
      const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
      if (left <= milliseconds(0)) return std::nullopt;
      sleep_for(std::min(pause, left));
    }
  }

  [[nodiscard]] bool do_erase(Key key) override {
    const Descriptor lock = hold("erase", key);
    const bool lived = find(key).has_value();
    const std::string path = path_of(key);
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) fail("erase", key, errno);
    return lived;
  }

  [[nodiscard]] bool do_renew(Key key, Bytes value, Milliseconds expiry) override {
    Draft draft = write_draft("renew", key, value, expiry);
    const Descriptor lock = hold("renew", key);
    const std::optional<OpenValue> found = find(key);
    if (!found || found->header.value_bytes != value.size()) return false;
    const StoreValue bytes = found->bytes();
    if (!std::equal(value.begin(), value.end(), bytes.begin(), bytes.end())) return false;
    place(draft, "renew", key);
    return true;
  }

 private:
  // A value that is not visible yet. It is removed unless it is placed.
  struct Draft {
    std::string path;
    explicit Draft(std::string p) : path(std::move(p)) {}
    Draft(Draft&& other) noexcept : path(std::exchange(other.path, {})) {}
    Draft& operator=(Draft&&) = delete;
    ~Draft() {
      if (!path.empty()) ::unlink(path.c_str());
    }
  };

  [[noreturn]] void fail(std::string_view operation, Key key, int error) const {
    fail_io("store {}: {} {}: {}", name_, operation, quote(key), std::strerror(error));
  }

  [[nodiscard]] std::string path_of(Key key) const {
    return fmt::format("{}/{}", folder_, file_name_of(key));
  }

  // The value under the key if it lives.
  [[nodiscard]] std::optional<OpenValue> find(Key key) const {
    std::optional<OpenValue> value = open_value(path_of(key));
    if (value && !value->lives()) value.reset();
    return value;
  }

  // Holds the folder's lock until the result is destroyed.
  [[nodiscard]] Descriptor hold(std::string_view operation, Key key) const {
    Descriptor file = open_file(folder_ + "/lock", O_RDWR | O_CREAT | O_NOFOLLOW);
    if (!file.valid()) fail(operation, key, errno);
    constexpr milliseconds kLongestPause{5};
    const Clock::time_point deadline = Clock::now() + timeout_;
    for (milliseconds pause{1}; ::flock(file.get(), LOCK_EX | LOCK_NB) != 0;
         pause = std::min(2 * pause, kLongestPause)) {
      if (errno != EWOULDBLOCK && errno != EINTR) fail(operation, key, errno);
      if (Clock::now() >= deadline) {
        fail_io(
            "store {}: {} {}: expected the lock of the folder within {} ms, found it held by "
            "another process",
            name_, operation, quote(key), timeout_.count());
      }
      sleep_for(pause);
    }
    return file;
  }

  [[nodiscard]] Draft write_draft(std::string_view operation, Key key, Bytes value,
                                  Milliseconds expiry) {
    // Processes of several machines can have the same number, hence a random name.
    NewFile made = make_new_file(fmt::format("{}/{}", folder_, kDraftPrefix), "", kReadWriteForAll);
    if (made.descriptor < 0) fail(operation, key, made.error);
    Descriptor file(made.descriptor);
    Draft draft(std::move(made.path));
    const auto header = encode_value_header({now_ms() + expiry.count(), value.size()});
    if (!write_all(file.get(), header) || !write_all(file.get(), value) || !file.close()) {
      fail(operation, key, errno);
    }
    return draft;
  }

  // Requires the lock.
  void place(Draft& draft, std::string_view operation, Key key) {
    if (::rename(draft.path.c_str(), path_of(key).c_str()) != 0) fail(operation, key, errno);
    draft.path.clear();
    if (++num_placed_ % kSweepInterval == 0) sweep();
  }

  // Removes values whose life is over and drafts that killed processes left. Requires the lock.
  void sweep() const {
    std::error_code none;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_, none)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(kDraftPrefix)) {
        const auto written = entry.last_write_time(none);
        if (!none && fs::file_time_type::clock::now() - written > kDraftLife) {
          fs::remove(entry.path(), none);
        }
      } else if (name.starts_with(kValuePrefix)) {
        remove_if_over(entry.path().string());
      }
    }
  }

  static void remove_if_over(const std::string& path) {
    try {
      const std::optional<OpenValue> value = open_value(path);
      if (value && !value->lives()) ::unlink(path.c_str());
    } catch (const IoError&) {  // a caller that gets it sees the error
    }
  }

  const std::string folder_;
  const std::string name_;
  const milliseconds timeout_;
  std::atomic<std::int64_t> num_placed_ = 0;
};

}  // namespace

std::unique_ptr<Store> open_file_store(std::string_view rest, const StoreOptions& options) {
  CONTEXTILE_CHECK(rest.size() > 3 && rest.starts_with("///"),
                   "store: expected file:///FOLDER, found {}", quote("file:" + std::string(rest)));
  const std::string folder(rest.substr(2));
  std::error_code error;
  fs::create_directory(folder, error);
  if (!fs::is_directory(folder)) {
    fail_io("store file://{}: expected a folder or one that can be made, found {}", folder,
            error ? error.message() : "something else");
  }
  return std::make_unique<FileStore>(folder, options);
}

}  // namespace contextile
