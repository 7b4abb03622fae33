// The secret that the ranks of a group share, and the codes by which they prove that they know it.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

#include "contextile/extend/transport.h"

namespace contextile {

inline constexpr std::size_t kCodeBytes = 32;   // of HMAC-SHA-256
inline constexpr std::size_t kNonceBytes = 32;  // never used twice

// Returns the secret of the options: their bytes, or those of their file, or of the file that the
// environment variable CONTEXTILE_SECRET_FILE names, or none (""). Throws InvalidArgument unless it
// has 16 to 4096 bytes and only its owner and group may read or write the file, IoError if
// the file cannot be read. One line break at the end of a file is not part of the secret.
[[nodiscard]] std::string secret_of(const GlooOptions& options);

// Returns kNonceBytes that cannot be guessed.
[[nodiscard]] std::string fresh_nonce();

// Returns HMAC-SHA-256 of the parts, each with its length in front, in kCodeBytes bytes. Without a
// secret it proves nothing, but does not show the parts either.
[[nodiscard]] std::string code_of(std::string_view secret,
                                  std::initializer_list<std::string_view> parts);
// Compares codes in a time that says nothing about them.
[[nodiscard]] bool same_code(std::string_view a, std::string_view b);

// Returns a name of the run for places that others see. It does not show the run's id.
[[nodiscard]] std::string public_name_of(std::string_view run_id);

}  // namespace contextile
