#include "server/rpc/rpc_methods.h"

namespace quantgate {
namespace {

constexpr std::string_view kUnary = "unary";
constexpr std::string_view kServerStream = "server_stream";
constexpr std::string_view kInfo = "quantgate.v1.Info";
constexpr std::string_view kBlobs = "quantgate.v1.Blobs";
constexpr std::string_view kTensors = "quantgate.v1.Tensors";
constexpr std::string_view kEngine = "quantgate.v1.Engine";
constexpr std::string_view kScenarios = "quantgate.v1.Scenarios";
constexpr std::string_view kSessions = "quantgate.v1.Sessions";

constexpr RpcMethod kMethods[] = {
    {kUnary, kInfo, "GetCapabilities"},  {kUnary, kInfo, "ListRecipes"},
    {kUnary, kInfo, "ListArithmetics"},  {kUnary, kInfo, "CheckHardware"},
    {kUnary, kBlobs, "FindMissing"},     {"client_stream", kBlobs, "Write"},
    {kUnary, kBlobs, "QueryWrite"},      {kServerStream, kBlobs, "Read"},
    {kUnary, kTensors, "Put"},           {kUnary, kTensors, "Generate"},
    {kUnary, kTensors, "Describe"},      {kUnary, kTensors, "List"},
    {kUnary, kEngine, "Quantize"},       {kUnary, kEngine, "Dequantize"},
    {kUnary, kEngine, "Gemm"},           {kUnary, kEngine, "Compare"},
    {kUnary, kEngine, "Explain"},        {kServerStream, kEngine, "Execute"},
    {kServerStream, kEngine, "WaitRun"}, {kUnary, kEngine, "GetRun"},
    {kUnary, kEngine, "ListRuns"},       {kUnary, kEngine, "CancelRun"},
    {kUnary, kScenarios, "List"},        {kServerStream, kScenarios, "Run"},
    {kUnary, kSessions, "Open"},         {kUnary, kSessions, "Step"},
    {kUnary, kSessions, "Get"},          {kUnary, kSessions, "List"},
    {kUnary, kSessions, "Checkpoint"},   {kUnary, kSessions, "Restore"},
    {kUnary, kSessions, "Close"},
};

}  // namespace

std::span<const RpcMethod> AllRpcMethods() { return kMethods; }

}  // namespace quantgate
