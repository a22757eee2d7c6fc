// The token of a run, which its ranks prove to each other that they know and never send: HMAC-SHA256 over nonces of
// both sides. `launch` makes one; other launchers hand one down in REDLINE_TOKEN.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "dist/place.h"

namespace redline::dist {

inline constexpr const char* kTokenVariable = "REDLINE_TOKEN";
inline constexpr std::size_t kProofBytes = 32, kNonceBytes = 32;

std::string sha256(std::string_view bytes);                             // 32 bytes
std::string hmac_sha256(std::string_view key, std::string_view bytes);  // 32 bytes
bool same_secret(std::string_view a, std::string_view b);               // in a time that tells nothing of either

std::string random_bytes(std::size_t count);  // from the system
std::string new_token();                      // 64 hexadecimal digits

// What the ranks of a run, and nobody else, can compute: from REDLINE_TOKEN, and from the job's name, so that runs
// which share a token do not take each other's ranks. Where all ranks are on one machine and there is no token, it is
// made from a key of the user's own in a file that nobody else can read (`folder`, or where caches are kept). A token
// that is too short, and several machines without one, are a UserError.
std::string run_secret(const Place& place, int port, const std::string& folder = "");
inline std::string run_secret(const Place& place) { return run_secret(place, place.port); }

// `from` and `to` tell the two directions apart; both nonces are in it, so that no proof can be used again.
std::string proof(std::string_view secret, std::string_view from, std::string_view host_nonce,
                  std::string_view guest_nonce, std::string_view said = {});

}  // namespace redline::dist
