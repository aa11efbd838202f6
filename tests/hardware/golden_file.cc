#include "tests/hardware/golden_file.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace quantgate::hardware {
namespace {

std::string SafetensorsName(const std::string& type) {
  std::string upper = type;
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  return upper;
}

}  // namespace

void GoldenFile::AddTensor(const std::string& name, const std::string& type,
                           const std::vector<int64_t>& shape, const std::vector<uint8_t>& bytes) {
  const auto [it, inserted] = tensors_.try_emplace(name, Entry{type, shape, bytes});
  if (!inserted && it->second.bytes != bytes) {
    std::fprintf(stderr, "two tensors named %s\n", name.c_str());
    std::exit(1);
  }
}

void GoldenFile::Write(const std::string& path, const std::string& origin) const {
  nlohmann::json header;
  header["__metadata__"] = {{"origin", origin}, {"cases", cases_.dump()}};
  // Wider elements first, so that every tensor is aligned to its element.
  std::vector<std::pair<std::string, const Entry*>> order;
  for (const auto& [name, entry] : tensors_) order.emplace_back(name, &entry);
  const auto width = [](const Entry* e) {
    return e->type == "f32" ? 4 : e->type.starts_with("f8") ? 1 : 2;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](const auto& x, const auto& y) { return width(x.second) > width(y.second); });
  size_t offset = 0;
  for (const auto& [name, entry] : order) {
    header[name] = {{"dtype", SafetensorsName(entry->type)},
                    {"shape", entry->shape},
                    {"data_offsets", {offset, offset + entry->bytes.size()}}};
    offset += entry->bytes.size();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  for (const auto& [name, entry] : order) {
    file.write(reinterpret_cast<const char*>(entry->bytes.data()),
               static_cast<std::streamsize>(entry->bytes.size()));
  }
  if (!file.flush()) {
    std::fprintf(stderr, "cannot write %s\n", path.c_str());
    std::exit(1);
  }
}

}  // namespace quantgate::hardware
