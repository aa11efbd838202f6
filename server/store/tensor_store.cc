#include "server/store/tensor_store.h"

#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"
#include "server/errors.h"

namespace quantgate {
namespace {

constexpr char kTensorColumns[] = "id, sha256, size, dtype, shape, name, fingerprint";

absl::StatusOr<TensorRecord> ReadTensor(const Statement& row) {
  TensorRecord record;
  record.id = row.Integer(0);
  const std::string sha256 = row.Text(1);
  const std::string fingerprint = row.Text(6);
  if (sha256.size() != 32 || fingerprint.size() != 16) {
    return absl::DataLossError("the database holds a damaged tensor record");
  }
  std::memcpy(record.digest.sha256.bytes.data(), sha256.data(), 32);
  std::memcpy(&record.fingerprint.high, fingerprint.data(), 8);
  std::memcpy(&record.fingerprint.low, fingerprint.data() + 8, 8);
  record.digest.size = row.Integer(2);
  QG_ASSIGN_OR_RETURN(record.type.dtype, ParseDType(row.Text(3)));
  for (const auto& dim : absl::StrSplit(row.Text(4), ',', absl::SkipEmpty())) {
    int64_t value;
    if (!absl::SimpleAtoi(dim, &value))
      return absl::DataLossError("the database holds a bad shape");
    record.type.shape.push_back(value);
  }
  record.name = row.Text(5);
  return record;
}

std::string FingerprintBytes(const Fingerprint& fingerprint) {
  std::string bytes(16, '\0');
  std::memcpy(bytes.data(), &fingerprint.high, 8);
  std::memcpy(bytes.data() + 8, &fingerprint.low, 8);
  return bytes;
}

}  // namespace

absl::StatusOr<std::optional<TensorRecord>> TensorStore::FindRequest(const std::string& request_id,
                                                                     const Sha256& content) {
  if (request_id.empty()) return std::nullopt;
  TensorRecord record;
  {
    const std::lock_guard lock(database_.mutex());
    QG_ASSIGN_OR_RETURN(Statement row,
                        database_.Prepare(absl::StrCat("SELECT ", kTensorColumns,
                                                       ", content FROM requests JOIN tensors "
                                                       "ON id = tensor_id WHERE request_id = ?")));
    QG_ASSIGN_OR_RETURN(const bool found, row.Bind(request_id).Step());
    if (!found) return std::nullopt;
    if (row.Text(7) != content.view()) return error::RequestIdReused(request_id);
    QG_ASSIGN_OR_RETURN(record, ReadTensor(row));
  }
  // Another call may have stored it just now, so that the disk may lack it.
  QG_RETURN_IF_ERROR(database_.Flush());
  return record;
}

absl::StatusOr<TensorRecord> TensorStore::Put(const TensorRecord& record,
                                              const std::string& request_id,
                                              const Sha256& content) {
  QG_ASSIGN_OR_RETURN(TensorRecord stored, Insert(record, request_id, content));
  QG_RETURN_IF_ERROR(database_.Flush());
  return stored;
}

absl::StatusOr<TensorRecord> TensorStore::Insert(const TensorRecord& record,
                                                 const std::string& request_id,
                                                 const Sha256& content) {
  const std::lock_guard lock(database_.mutex());
  Transaction transaction(database_);
  QG_RETURN_IF_ERROR(transaction.Begin());
  const std::string shape = absl::StrJoin(record.type.shape, ",");
  QG_ASSIGN_OR_RETURN(
      Statement insert,
      database_.Prepare("INSERT INTO tensors (sha256, size, dtype, shape, name, fingerprint) "
                        "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"));
  QG_RETURN_IF_ERROR(insert.BindBlob(record.digest.sha256.view())
                         .Bind(record.digest.size)
                         .Bind(DTypeName(record.type.dtype))
                         .Bind(shape)
                         .Bind(record.name)
                         .BindBlob(FingerprintBytes(record.fingerprint))
                         .Run());
  QG_ASSIGN_OR_RETURN(Statement row,
                      database_.Prepare(absl::StrCat("SELECT ", kTensorColumns,
                                                     " FROM tensors WHERE sha256 = ? AND size = ? "
                                                     "AND dtype = ? AND shape = ? AND name = ?")));
  QG_RETURN_IF_ERROR(row.BindBlob(record.digest.sha256.view())
                         .Bind(record.digest.size)
                         .Bind(DTypeName(record.type.dtype))
                         .Bind(shape)
                         .Bind(record.name)
                         .Step()
                         .status());
  QG_ASSIGN_OR_RETURN(TensorRecord stored, ReadTensor(row));
  if (!request_id.empty()) {
    QG_ASSIGN_OR_RETURN(Statement request,
                        database_.Prepare("INSERT INTO requests (request_id, content, tensor_id) "
                                          "VALUES (?, ?, ?) ON CONFLICT DO NOTHING"));
    QG_RETURN_IF_ERROR(request.Bind(request_id).BindBlob(content.view()).Bind(stored.id).Run());
  }
  QG_RETURN_IF_ERROR(transaction.Commit());
  return stored;
}

absl::StatusOr<std::vector<TensorRecord>> TensorStore::Find(const Digest& digest) {
  const std::lock_guard lock(database_.mutex());
  QG_ASSIGN_OR_RETURN(Statement rows,
                      database_.Prepare(absl::StrCat("SELECT ", kTensorColumns,
                                                     " FROM tensors WHERE sha256 = ? AND size = ? "
                                                     "ORDER BY id DESC")));
  rows.BindBlob(digest.sha256.view()).Bind(digest.size);
  std::vector<TensorRecord> records;
  while (true) {
    QG_ASSIGN_OR_RETURN(const bool found, rows.Step());
    if (!found) return records;
    QG_ASSIGN_OR_RETURN(TensorRecord record, ReadTensor(rows));
    records.push_back(std::move(record));
  }
}

absl::StatusOr<TensorPage> TensorStore::List(int64_t before_id, int page_size) {
  const std::lock_guard lock(database_.mutex());
  return ReadRecordPage<TensorPage>(database_, "tensors", kTensorColumns, before_id, page_size,
                                    ReadTensor);
}

}  // namespace quantgate
