#include "server/rpc/prepared_run.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "server/rpc/convert_layer.h"
#include "server/rpc/parse_message.h"

namespace quantgate {

namespace {

bool HasAllTypes(LayerRun& run) {
  const std::vector<TensorReference*> tensors = run.tensors();
  return std::all_of(tensors.begin(), tensors.end(), [](const TensorReference* tensor) {
    return !tensor->has_value() || tensor->type.has_value();
  });
}

}  // namespace

const absl::StatusOr<v1::ExecuteRequest>& PreparedRun::Request() {
  std::call_once(parsed_, [this] { request_ = Parsed<v1::ExecuteRequest>(bytes_); });
  return request_;
}

void PreparedRun::Prepare() {
  const absl::StatusOr<v1::ExecuteRequest>& request = Request();
  std::call_once(converted_, [&] {
    run_ = request.ok() ? LayerRunFromProto(request->spec(), tensor_bytes_max_)
                        : absl::StatusOr<LayerRun>(request.status());
    if (run_.ok() && HasAllTypes(*run_)) outline_ = OutlineLayerRun(*run_);
  });
}

absl::StatusOr<LayerRun> PreparedRun::TakeRun() {
  Prepare();
  return std::move(run_);
}

absl::StatusOr<Plan> PreparedRun::TakeOutline(const LayerRun& run) {
  return outline_.has_value() ? *std::move(outline_) : OutlineLayerRun(run);
}

}  // namespace quantgate
