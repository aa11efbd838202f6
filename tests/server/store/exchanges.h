// Calls of a server as bytes, whatever their method: asked, recorded as text, and asked again of
// another version. Read back by their descriptors alone, so that nothing here follows the API.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace quantgate {

/// One call, unary or a stream, with what came back.
struct Exchange {
  std::string method;  ///< "quantgate.v1.Engine/GetRun".
  std::vector<std::string> requests;
  int status = 0;
  /// Serialized; those too large for a record are "sha256 HEX SIZE" of the bytes that Comparable
  /// gives.
  std::vector<std::string> responses;
};

/// Sends the requests and takes all that comes back.
Exchange Ask(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
             const std::vector<std::string>& requests);

/// A response of a method as deterministic bytes, less what no two answers share (ids of sessions)
/// and what later versions say of data as old as this (`unverified`).
std::string Comparable(const std::string& method, const std::string& response);
/// Each response, as a line of a record has it.
std::vector<std::string> ComparableLines(const Exchange& exchange);

/// Lines "call METHOD", "request BASE64", "status NUMBER", "response BASE64" and
/// "response sha256 HEX SIZE"; others begin with '#'.
std::string TextOf(const std::vector<Exchange>& exchanges);
absl::StatusOr<std::vector<Exchange>> ExchangesFrom(const std::string& text);
/// Whether a recorded response is its digest only.
bool IsDigest(const std::string& response);

}  // namespace quantgate
