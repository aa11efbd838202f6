// Makes what tests/data/v0.1.0 keeps of a version, with that version's server:
//   record_kept_data ADDRESS fill FILE            fills its data directory by calls, records them
//   record_kept_data ADDRESS ask FILLED FILE      asks for all of it, records the answers
//   record_kept_data ADDRESS time ANSWERS ROUNDS  how long WaitRun takes over all runs
#include <grpcpp/create_channel.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/server/store/store_contents.h"

namespace {

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Every WaitRun of a record, so many times; seconds of the fastest round.
int Time(const std::shared_ptr<grpc::Channel>& channel,
         const std::vector<quantgate::Exchange>& asked, int rounds) {
  double best = 0;
  size_t bytes = 0, events = 0;
  for (int round = 0; round < rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    bytes = events = 0;
    for (const quantgate::Exchange& exchange : asked) {
      if (exchange.method != "quantgate.v1.Engine/WaitRun") continue;
      const auto now = quantgate::Ask(channel, exchange.method, exchange.requests);
      events += now.responses.size();
      for (const std::string& response : now.responses) bytes += response.size();
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (round == 0 || took.count() < best) best = took.count();
  }
  std::printf("%zu events, %zu bytes: %.3f ms\n", events, bytes, best * 1e3);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 3 ? argv[2] : "";
  if (!(what == "fill" && argc == 4) && !((what == "ask" || what == "time") && argc == 5)) {
    std::fprintf(stderr,
                 "record_kept_data ADDRESS fill FILE | ask FILLED FILE | time ANSWERS ROUNDS\n");
    return 2;
  }
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  const auto channel =
      grpc::CreateCustomChannel(argv[1], grpc::InsecureChannelCredentials(), arguments);
  std::vector<quantgate::Exchange> exchanges;
  if (what == "fill") {
    exchanges = quantgate::FillStore(channel);
  } else {
    const auto filled = quantgate::ExchangesFrom(ReadText(argv[3]));
    if (!filled.ok()) {
      std::fprintf(stderr, "%s: %s\n", argv[3], std::string(filled.status().message()).c_str());
      return 2;
    }
    if (what == "time") return Time(channel, *filled, std::atoi(argv[4]));
    exchanges = quantgate::AskStore(channel, *filled);
  }
  std::ofstream(argv[argc - 1], std::ios::binary) << quantgate::TextOf(exchanges);
  for (const quantgate::Exchange& exchange : exchanges) {
    std::printf("%s: status %d, %zu responses\n", exchange.method.c_str(), exchange.status,
                exchange.responses.size());
  }
  return 0;
}
