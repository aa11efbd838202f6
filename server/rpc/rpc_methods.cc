#include "server/rpc/rpc_methods.h"

#include <google/protobuf/descriptor.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "quantgate/v1/blobs_service.pb.h"
#include "quantgate/v1/engine_service.pb.h"
#include "quantgate/v1/info_service.pb.h"
#include "quantgate/v1/scenarios_service.pb.h"
#include "quantgate/v1/sessions_service.pb.h"
#include "quantgate/v1/tensors_service.pb.h"

namespace quantgate {
namespace {

std::string_view TypeOf(const google::protobuf::MethodDescriptor& method) {
  if (method.client_streaming()) return method.server_streaming() ? "bidi_stream" : "client_stream";
  return method.server_streaming() ? "server_stream" : "unary";
}

struct MethodTable {
  std::vector<RpcMethod> methods;
  std::map<std::string, int> by_name;

  MethodTable() {
    for (const google::protobuf::Descriptor* message :
         {v1::GetCapabilitiesRequest::descriptor(), v1::FindMissingRequest::descriptor(),
          v1::PutTensorRequest::descriptor(), v1::QuantizeRequest::descriptor(),
          v1::RunScenariosRequest::descriptor(), v1::OpenSessionRequest::descriptor()}) {
      for (int i = 0; i < message->file()->service_count(); ++i) Add(*message->file()->service(i));
    }
  }
  void Add(const google::protobuf::ServiceDescriptor& service) {
    for (int i = 0; i < service.method_count(); ++i) {
      const google::protobuf::MethodDescriptor& method = *service.method(i);
      by_name.emplace(absl::StrCat(service.name(), ".", method.name()),
                      static_cast<int>(methods.size()));
      methods.push_back({TypeOf(method), service.full_name(), method.name()});
    }
  }
};

const MethodTable& Table() {
  static const auto* const table = new MethodTable();
  return *table;
}

}  // namespace

std::span<const RpcMethod> AllRpcMethods() { return Table().methods; }

Rpc::Rpc(std::string_view name) : index_(Table().by_name.at(std::string(name))) {}

}  // namespace quantgate
