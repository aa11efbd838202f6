#include "client/memory_connection.h"

#include <utility>

#include "client/blob_transfer.h"

namespace quantgate {
namespace {

/// Tensors in memory: those that are uploaded and made, beside those that are found elsewhere.
class StoreInMemory : public ConnectionStore {
 public:
  explicit StoreInMemory(MemoryStore::Elsewhere elsewhere) : store_(std::move(elsewhere)) {}
  Blobs& blobs() override { return store_; }
  Tensors& tensors() override { return store_; }
  absl::StatusOr<bool> Add(const SharedBytes& bytes, const Digest& digest) override {
    // Nothing writes to a blob. Nobody else is asked, since these bytes are at hand.
    auto* const data = const_cast<std::byte*>(bytes.bytes.data());
    store_.Add(digest, Buffer::Wrap(data, bytes.bytes.size(), bytes.owner));
    return false;
  }

 private:
  MemoryStore store_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Connection>> ConnectInMemory(MemoryStore::Elsewhere elsewhere,
                                                            const LocalOptions& local,
                                                            const ConnectionOptions& options) {
  return LocalConnection::Open(std::make_unique<StoreInMemory>(std::move(elsewhere)), local,
                               options);
}

}  // namespace quantgate
