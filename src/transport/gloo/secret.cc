#include "transport/gloo/secret.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "base/check.h"
#include "base/quote.h"

namespace contextile {
namespace {

constexpr std::size_t kMinSecretBytes = 16;
constexpr std::size_t kMaxSecretBytes = 4096;

class OpenFile {
 public:
  explicit OpenFile(const std::string& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~OpenFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_;
};

void check_size(std::size_t bytes, std::string_view where) {
  CONTEXTILE_CHECK(bytes >= kMinSecretBytes && bytes <= kMaxSecretBytes,
                   "{}: expected a secret of {} to {} bytes, found {}{}", where, kMinSecretBytes,
                   kMaxSecretBytes, bytes > kMaxSecretBytes ? "more than " : "",
                   std::min(bytes, kMaxSecretBytes));
}

// Reads at most one byte more than a secret and its line break have.
std::string read_start(int fd, const std::string& name) {
  std::string text(kMaxSecretBytes + 3, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t found = ::read(fd, text.data() + size, text.size() - size);
    if (found < 0 && errno == EINTR) continue;
    if (found < 0) fail_io("secret file {}: {}", name, std::generic_category().message(errno));
    if (found == 0) break;
    size += static_cast<std::size_t>(found);
  }
  text.resize(size);
  return text;
}

std::string read_secret(const std::string& path) {
  const std::string name = printable(path);
  const OpenFile file(path);
  if (file.fd() < 0) fail_io("secret file {}: {}", name, std::generic_category().message(errno));
  struct stat status {};
  if (::fstat(file.fd(), &status) != 0) {
    fail_io("secret file {}: {}", name, std::generic_category().message(errno));
  }
  CONTEXTILE_CHECK(S_ISREG(status.st_mode), "secret file {}: expected a regular file, found none",
                   name);
  CONTEXTILE_CHECK((status.st_mode & 07) == 0,
                   "secret file {}: expected that only its owner and group may use it (chmod 600), "
                   "found the mode {:o}",
                   name, status.st_mode & 0777);
  std::string secret = read_start(file.fd(), name);
  if (secret.ends_with('\n')) secret.pop_back();
  if (secret.ends_with('\r')) secret.pop_back();
  check_size(secret.size(), "secret file " + name);
  return secret;
}

}  // namespace

std::string secret_of(const GlooOptions& options) {
  CONTEXTILE_CHECK(options.secret.empty() || options.secret_file.empty(),
                   "gloo: expected a secret or a file with it, found both");
  if (!options.secret.empty()) {
    check_size(options.secret.size(), "gloo");
    return options.secret;
  }
  if (!options.secret_file.empty()) return read_secret(options.secret_file);
  const char* const path = std::getenv("CONTEXTILE_SECRET_FILE");
  return path == nullptr || *path == '\0' ? std::string() : read_secret(path);
}

std::string fresh_nonce() {
  std::string nonce(kNonceBytes, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), static_cast<int>(nonce.size())) !=
      1) {
    throw TransportError("the random numbers of OpenSSL: expected some, found none");
  }
  return nonce;
}

std::string code_of(std::string_view secret, std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) {
    const std::uint64_t size = part.size();
    text.append(reinterpret_cast<const char*>(&size), sizeof(size)).append(part);
  }
  std::string code(kCodeBytes, '\0');
  unsigned int code_bytes = 0;
  if (HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(),
           reinterpret_cast<unsigned char*>(code.data()), &code_bytes) == nullptr ||
      code_bytes != kCodeBytes) {
    throw TransportError("HMAC-SHA-256 of OpenSSL: expected a code, found none");
  }
  return code;
}

bool same_code(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string public_name_of(std::string_view run_id) {
  constexpr std::size_t kNameBytes = 12;
  const std::string code = code_of("", {"contextile run", run_id});
  std::string name = "run-";
  for (const char byte : code.substr(0, kNameBytes)) {
    name += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return name;
}

}  // namespace contextile
