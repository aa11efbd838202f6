#include "kernels/gemm/algorithm_inventory.h"
#include "quantgate/v1/info_service.grpc.pb.h"
#include "server/limits.h"
#include "server/rpc/convert_recipe.h"
#include "server/rpc/services.h"
#include "server/rpc/unary_call.h"

namespace quantgate {
namespace {

v1::Capabilities MakeCapabilities(const ServiceContext& context) {
  v1::Capabilities proto;
  *proto.mutable_environment() = EnvironmentToProto(DescribeDevices(context.devices));
  v1::Limits& limits = *proto.mutable_limits();
  limits.set_message_bytes_max(kMessageBytesMax);
  limits.set_chunk_bytes(kChunkBytes);
  limits.set_inline_bytes_max(kInlineBytesMax);
  limits.set_blob_bytes_max(context.options.blob_bytes_max);
  limits.set_tensor_bytes_max(context.options.tensor_bytes_max);
  limits.set_rank_max(kRankMax);
  limits.set_variants_max(kVariantsMax);
  limits.set_queue_capacity(context.options.queue_capacity);
  limits.set_find_missing_max(kFindMissingMax);
  for (const DTypeTraits& traits : AllDTypes()) proto.add_dtypes(std::string(traits.name));
  for (const Distribution distribution : AllDistributions()) {
    proto.add_distributions(std::string(DistributionName(distribution)));
  }
  proto.add_layers(std::string(LayerKindName(LayerKind::kLinear)));
  proto.set_digest_function("sha256");
  for (const char* feature : {"resumable_upload", "generate", "wait_run", "request_id"}) {
    proto.add_features(feature);
  }
  return proto;
}

v1::AlgorithmInventory InventoryToProto(const AlgorithmInventory& inventory) {
  v1::AlgorithmInventory proto;
  proto.set_device(inventory.device);
  proto.set_driver(inventory.driver);
  proto.set_cublaslt(inventory.cublaslt);
  proto.set_date(inventory.date);
  proto.set_program(inventory.program);
  for (const AlgorithmClass& c : inventory.classes) {
    v1::AlgorithmClass& item = *proto.add_classes();
    item.set_operands(c.operands);
    item.set_algorithm_id(c.algorithm_id);
    item.set_slices(c.slices);
    item.set_request(c.request);
    item.set_arithmetic(c.arithmetic);
    item.set_first_choices(c.first_choices);
    item.set_returned(c.returned);
    item.set_equal(c.equal);
    item.set_differing(c.differing);
    item.set_not_run(c.not_run);
  }
  return proto;
}

/// What this server is does not change, so it is put together once.
class InfoService : public v1::Info::CallbackService {
 public:
  explicit InfoService(ServiceContext& context)
      : context_(context), capabilities_(MakeCapabilities(context)) {
    for (const auto& recipe : AllRecipes()) {
      *recipes_.add_recipes() = RecipeDescriptionToProto(recipe);
    }
    for (const auto& arithmetic : AllArithmetics()) {
      *arithmetics_.add_arithmetics() = ArithmeticDescriptionToProto(arithmetic);
    }
    *arithmetics_.mutable_cublaslt() = InventoryToProto(CublasLtInventory());
  }

  grpc::ServerUnaryReactor* GetCapabilities(grpc::CallbackServerContext* server_context,
                                            const v1::GetCapabilitiesRequest*,
                                            v1::Capabilities* response) override {
    return Answer(Rpc::kGetCapabilities, server_context, capabilities_, response);
  }
  grpc::ServerUnaryReactor* ListRecipes(grpc::CallbackServerContext* server_context,
                                        const v1::ListRecipesRequest*,
                                        v1::ListRecipesResponse* response) override {
    return Answer(Rpc::kListRecipes, server_context, recipes_, response);
  }
  grpc::ServerUnaryReactor* ListArithmetics(grpc::CallbackServerContext* server_context,
                                            const v1::ListArithmeticsRequest*,
                                            v1::ListArithmeticsResponse* response) override {
    return Answer(Rpc::kListArithmetics, server_context, arithmetics_, response);
  }

 private:
  template <typename Message>
  grpc::ServerUnaryReactor* Answer(Rpc rpc, grpc::CallbackServerContext* server_context,
                                   const Message& answer, Message* response) {
    return AnswerInline(context_, rpc, server_context, [&] {
      *response = answer;
      return absl::OkStatus();
    });
  }

  ServiceContext& context_;
  const v1::Capabilities capabilities_;
  v1::ListRecipesResponse recipes_;
  v1::ListArithmeticsResponse arithmetics_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeInfoService(ServiceContext& context) {
  return std::make_unique<InfoService>(context);
}

}  // namespace quantgate
