// Makes what tests/data/v0.1.0 keeps of a version, with that version's server:
//   record_kept_data ADDRESS fill FILE            fills its data directory by calls, records them
//   record_kept_data ADDRESS ask FILLED FILE      asks for all of it, records the answers
#include <grpcpp/create_channel.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/server/store_contents.h"

namespace {

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 3 ? argv[2] : "";
  if (!(what == "fill" && argc == 4) && !(what == "ask" && argc == 5)) {
    std::fprintf(stderr, "record_kept_data ADDRESS fill FILE | ADDRESS ask FILLED FILE\n");
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
    exchanges = quantgate::AskStore(channel, *filled);
  }
  std::ofstream(argv[argc - 1], std::ios::binary) << quantgate::TextOf(exchanges);
  for (const quantgate::Exchange& exchange : exchanges) {
    std::printf("%s: status %d, %zu responses\n", exchange.method.c_str(), exchange.status,
                exchange.responses.size());
  }
  return 0;
}
