// Traces (Sessions.RunTrace) without a server: what is refused before any step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/server/sessions/trace_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::HasSubstr;

struct Mistake {
  const char* field;
  const char* text;  ///< A part of the message.
  std::function<void(v1::RunTraceRequest& request, v1::SessionTrace& trace)> make;
};

/// Divides the layers of the first variant, and names bulk for fc1's dgrad.
void OverlapDgrad(v1::SessionTrace& trace) {
  trace.mutable_spec()->mutable_layers(0)->mutable_layer()->set_parallel_mode("column");
  trace.mutable_spec()->mutable_layers(1)->mutable_layer()->set_parallel_mode("row");
  v1::Parallel& parallel = *trace.mutable_variants(0)->mutable_parallel();
  parallel.set_tensor_parallel(2);
  parallel.set_sequence_parallel(true);
  parallel.mutable_overlap()->set_column_dgrad("bulk");
}

class RefusalTest : public TraceTest, public testing::WithParamInterface<int> {};

const std::vector<Mistake>& Mistakes() {
  using Request = v1::RunTraceRequest;
  using Trace = v1::SessionTrace;
  static const auto* const mistakes = new std::vector<Mistake>{
      {"trace.steps", "absent", [](Request&, Trace& trace) { trace.clear_steps(); }},
      {"trace.rounds", "-1", [](Request&, Trace& trace) { trace.set_rounds(-1); }},
      // 3 steps of 2 variants: 16666 rounds are within 100000 steps.
      {"trace.rounds", "16667", [](Request&, Trace& trace) { trace.set_rounds(16667); }},
      {"trace.variants", "65 given",
       [](Request&, Trace& trace) {
         while (trace.variants_size() < 65) *trace.add_variants() = trace.variants(0);
       }},
      {"trace.variants", "spec.recipe either",
       [](Request&, Trace& trace) { trace.clear_variants(); }},
      {"trace.spec.recipe", "beside variants",
       [](Request&, Trace& trace) { trace.mutable_spec()->mutable_recipe()->set_name("bf16"); }},
      {"trace.reference", "there are 2 variants",
       [](Request&, Trace& trace) { trace.set_reference(2); }},
      {"requirement", "no bound is derived",
       [](Request& request, Trace&) { request.set_requirement(v1::REQUIREMENT_BOUND); }},
      {"requirement", "nothing to compare it with",
       [](Request& request, Trace& trace) {
         trace.mutable_variants()->RemoveLast();
         request.set_requirement(v1::REQUIREMENT_BITWISE);
       }},
      {"trace.variants[1].recipe.name", "nope",
       [](Request&, Trace& trace) {
         trace.mutable_variants(1)->mutable_recipe()->set_name("nope");
       }},
      {"trace.variants[0].parallel.tensor_parallel", "-2",
       [](Request&, Trace& trace) {
         trace.mutable_variants(0)->mutable_parallel()->set_tensor_parallel(-2);
       }},
      {"trace.spec.masters", "nope",
       [](Request&, Trace& trace) { trace.mutable_spec()->set_masters("nope"); }},
      {"trace.parameters[fc9.weight]", "no layer has a parameter of that name",
       [](Request&, Trace& trace) { (*trace.mutable_parameters())["fc9.weight"] = "w1"; }},
      {R"(trace.parameters["fc1.weight"])", "among `tensors`",
       [](Request&, Trace& trace) { (*trace.mutable_parameters())["fc1.weight"] = "w9"; }},
      {R"(tensors["more"])", "names no such tensor",
       [](Request& request, Trace&) {
         (*request.mutable_tensors())["more"] = TraceTensor(1, {2});
       }},
      {R"(tensors["x"].generate.distribution)", "gauss",
       [](Request& request, Trace&) {
         (*request.mutable_tensors())["x"].mutable_generate()->set_distribution("gauss");
       }},
      {"trace.steps[3]", "absent", [](Request&, Trace& trace) { trace.add_steps(); }},
      {"trace.steps[2].x", "of a forward only",
       [](Request&, Trace& trace) { trace.mutable_steps(2)->set_x("x"); }},
      {"trace.steps[0].grad_output", "of a backward only",
       [](Request&, Trace& trace) { trace.mutable_steps(0)->set_grad_output("dy"); }},
      {"trace.steps[0].forward.x", "takes one",
       [](Request&, Trace& trace) { trace.mutable_steps(0)->clear_x(); }},
      {"trace.steps[0].forward.x", "given twice",
       [](Request&, Trace& trace) {
         *trace.mutable_steps(0)->mutable_forward()->mutable_x() = TraceTensor(1, {2});
       }},
      {"trace.steps[0].forward.is_first", "maybe",
       [](Request&, Trace& trace) {
         trace.mutable_steps(0)->mutable_forward()->set_is_first("maybe");
       }},
      {"trace.steps[0].forward.layers[fc1].x", "bf16 / none / auto, step 1 (forward): ",
       [](Request& request, Trace&) {
         (*request.mutable_tensors())["x"] = TraceTensor(1, {8, 3});
       }},
      {"trace.steps[1].backward.grad_output", "y's shape 32x32",
       [](Request& request, Trace&) {
         (*request.mutable_tensors())["dy"] = TraceTensor(1, {32, 31});
       }},
      {"trace.steps[1].backward.microbatch", "no forward of it is in flight",
       [](Request&, Trace& trace) {
         trace.mutable_steps(1)->mutable_backward()->set_microbatch("other");
       }},
      // The second round finds the microbatch that the first has left.
      {"trace.steps[0].forward.microbatch", "step 3 (forward)",
       [](Request& request, Trace& trace) {
         trace.mutable_steps()->DeleteSubrange(1, 1);
         trace.mutable_steps(1)->mutable_offload();
         trace.set_rounds(2);
         request.mutable_tensors()->erase("dy");
       }},
      {"trace.steps[2].optimize.learning_rate", "must be finite and at least 0",
       [](Request&, Trace& trace) {
         trace.mutable_steps(2)->mutable_optimize()->set_learning_rate(-1);
       }},
      {"trace.steps[0].optimize.gradients", "run a backward first",
       [](Request& request, Trace& trace) {
         trace.mutable_steps()->DeleteSubrange(0, 2);
         request.mutable_tensors()->erase("dy");
         request.mutable_tensors()->erase("x");
       }},
      {"trace.steps[3].wgrad.gradients", "not deferred",
       [](Request&, Trace& trace) { trace.add_steps()->mutable_wgrad(); }},
      {"trace.steps[1].restart.microbatch", "run its backward before a checkpoint",
       [](Request& request, Trace& trace) {
         trace.mutable_steps(1)->clear_grad_output();
         trace.mutable_steps(1)->mutable_restart();
         request.mutable_tensors()->erase("dy");
       }},
      {"trace.steps[3].restart.variants", "there are 2 variants",
       [](Request&, Trace& trace) { trace.add_steps()->mutable_restart()->add_variants(2); }},
      {"trace.steps[3].restart.parallel.tensor_parallel", "from 1 to 8",
       [](Request&, Trace& trace) {
         trace.add_steps()->mutable_restart()->mutable_parallel()->set_tensor_parallel(-1);
       }},
      // A restart without ranks stays on those of the restart before it, not of the beginning.
      {"trace.steps[5].forward.layers[fc1].x", "bf16 / none / auto, step 6 (forward): ",
       [](Request& request, Trace& trace) {
         trace.mutable_variants()->RemoveLast();
         trace.mutable_variants(0)->mutable_parallel()->set_data_parallel(2);
         trace.add_steps()->mutable_restart()->mutable_parallel();
         trace.add_steps()->mutable_restart();
         Trace::Step& forward = *trace.add_steps();
         forward.mutable_forward();
         forward.set_x("narrow");
         (*request.mutable_tensors())["narrow"] = TraceTensor(1, {8, 3});
       }},
      {"trace.steps[3].change_recipe.recipe.name", "nope",
       [](Request&, Trace& trace) {
         trace.add_steps()->mutable_change_recipe()->mutable_recipe()->set_name("nope");
       }},
      // The recipe alone tells what a named overlap cannot do, before any step is computed.
      {"trace.variants[0].parallel.overlap.column_dgrad", "is bulk: backward_override is dequant",
       [](Request&, Trace& trace) {
         OverlapDgrad(trace);
         trace.mutable_variants(0)->mutable_recipe()->set_name("mxfp8");
         trace.mutable_variants(0)->set_backward_override("dequantized");
       }},
      {"trace.variants[0].parallel.overlap.column_dgrad", "is bulk: recipe is fp8_block: ",
       [](Request&, Trace& trace) {
         OverlapDgrad(trace);
         trace.mutable_variants(0)->mutable_recipe()->set_name("fp8_block");
       }},
      // So do the profile, and the dims of each rank's part of a weight [32][32].
      {"trace.variants[0].parallel.reduction_profile",
       "is rank_asc_fp32: a ring_exchange reduce-scatter sums in the order of ub_p2p (layer fc1)",
       [](Request&, Trace& trace) {
         OverlapDgrad(trace);
         trace.mutable_variants(0)->mutable_parallel()->mutable_overlap()->set_column_dgrad(
             "ring_exchange");
       }},
      {"trace.variants[0].recipe", "parallel.overlap.splits is 5: it must divide the 32 columns",
       [](Request&, Trace& trace) {
         OverlapDgrad(trace);
         v1::Overlap& overlap = *trace.mutable_variants(0)->mutable_parallel()->mutable_overlap();
         overlap.set_row_fprop("pipeline");
         overlap.set_splits(5);
       }},
      {"trace.spec.layers[fc1].layer.return_norm_output", "is true: ",
       [](Request&, Trace& trace) {
         OverlapDgrad(trace);
         trace.mutable_spec()->mutable_layers(0)->mutable_layer()->set_return_norm_output(true);
       }},
      {R"(trace.steps[0].subjects["fc1.norm_out"])", "gives no such tensor",
       [](Request&, Trace& trace) {
         (*trace.mutable_steps(0)->mutable_subjects())["fc1.norm_out"] = "x";
       }},
      {"trace.steps[3].change_recipe.parallel.overlap.column_dgrad",
       "is bulk: recipe is fp8_block: ",
       [](Request&, Trace& trace) {
         OverlapDgrad(trace);
         trace.add_steps()->mutable_change_recipe()->mutable_recipe()->set_name("fp8_block");
       }},
      {"trace.steps[0].forward.overlap.row_fprop", "is bulk: it scatters y inside its own GEMM",
       [](Request&, Trace& trace) {
         OverlapDgrad(trace);
         trace.mutable_steps(0)->mutable_forward()->mutable_overlap()->set_row_fprop("bulk");
       }},
      {"trace.steps[0].forward.overlap", "a session on one rank communicates nothing",
       [](Request&, Trace& trace) {
         trace.mutable_steps(0)->mutable_forward()->mutable_overlap()->set_row_fprop("pipeline");
       }},
      {"trace.variants[1].parallel.expert_parallel", "there are no experts to divide",
       [](Request&, Trace& trace) {
         trace.mutable_variants(1)->mutable_parallel()->set_expert_parallel(2);
       }},
      {"trace.spec.layers[1].layer.m_splits", "each of the 4 ranks has an expert at least",
       [](Request&, Trace& trace) {
         auto& layer = *trace.mutable_spec()->mutable_layers(1)->mutable_layer();
         layer.set_kind("grouped_linear");
         for (const int rows : {8, 16, 8}) layer.add_m_splits(rows);
         for (const char* name : {"0", "1", "2"}) {
           (*trace.mutable_parameters())[std::string("fc2.weight.") + name] = "w2";
         }
         trace.mutable_parameters()->erase("fc2.weight");
         trace.mutable_variants(1)->mutable_parallel()->set_expert_parallel(4);
       }},
      {"trace.variants[1].parallel", "times data_parallel, is the number of ranks, 2 to 8",
       [](Request&, Trace& trace) {
         trace.mutable_variants(1)->mutable_parallel()->set_fully_sharded(true);
       }},
      {"trace.variants[1].parallel.fully_sharded", "fully_sharded needs data_parallel > 1",
       [](Request&, Trace& trace) {
         v1::Parallel& parallel = *trace.mutable_variants(1)->mutable_parallel();
         parallel.set_tensor_parallel(2);
         parallel.set_fully_sharded(true);
       }},
      {"trace.variants[1].parallel.reshard_after_forward", "it needs fully_sharded",
       [](Request&, Trace& trace) {
         v1::Parallel& parallel = *trace.mutable_variants(1)->mutable_parallel();
         parallel.set_data_parallel(2);
         parallel.set_reshard_after_forward(false);
       }},
      {"trace.variants[1].parallel.distributed_optimizer",
       "divide masters and moments by rows already",
       [](Request&, Trace& trace) {
         v1::Parallel& parallel = *trace.mutable_variants(1)->mutable_parallel();
         parallel.set_data_parallel(2);
         parallel.set_fully_sharded(true);
         parallel.set_distributed_optimizer(true);
       }},
      {R"(trace.steps[0].subjects["z"])", "gives no such tensor",
       [](Request&, Trace& trace) { (*trace.mutable_steps(0)->mutable_subjects())["z"] = "x"; }},
      {R"(trace.steps[0].subjects["y"])", "among `tensors`",
       [](Request&, Trace& trace) { (*trace.mutable_steps(0)->mutable_subjects())["y"] = "mine"; }},
      {"trace.steps[0].subjects", "rounds",
       [](Request&, Trace& trace) {
         (*trace.mutable_steps(0)->mutable_subjects())["y"] = "dy";
         trace.set_rounds(2);
       }},
      {"trace.steps[0].subjects_of", "there are 2 variants",
       [](Request&, Trace& trace) {
         (*trace.mutable_steps(0)->mutable_subjects())["y"] = "dy";
         trace.mutable_steps(0)->set_subjects_of(2);
       }},
      {"trace.steps[0].subjects", "are about them",
       [](Request&, Trace& trace) {
         trace.mutable_steps(0)->set_subjects_requirement(v1::REQUIREMENT_BOUND);
       }},
      // Of several mistakes in a map the first by name, and no byte of a client as it is.
      {R"(tensors["\x1b[31m"].generate.distribution)", "gauss",
       [](Request& request, Trace&) {
         for (const char* name : {"c", "\x1b[31m", "b", "a", "d", "e", "f", "g"}) {
           (*request.mutable_tensors())[name].mutable_generate()->set_distribution("gauss");
         }
       }},
      {R"(trace.parameters["a"])", "among `tensors`",
       [](Request&, Trace& trace) {
         for (const char* name : {"f", "c", "b", "a", "d", "e"}) {
           (*trace.mutable_parameters())[name] = "none";
         }
       }},
      {R"(trace.steps[0].subjects["a"])", "among `tensors`",
       [](Request&, Trace& trace) {
         for (const char* name : {"f", "c", "b", "a", "d", "e"}) {
           (*trace.mutable_steps(0)->mutable_subjects())[name] = "none";
         }
       }},
      {R"(tensors["m0"])", "names no such tensor",
       [](Request& request, Trace&) {
         for (const char* name : {"m5", "m1", "m3", "m0", "m2", "m4"}) {
           (*request.mutable_tensors())[name] = TraceTensor(1, {2});
         }
       }},
  };
  return *mistakes;
}

TEST_P(RefusalTest, OfAMistakeBeforeAnyStep) {
  const Mistake& mistake = Mistakes()[static_cast<size_t>(GetParam())];
  v1::RunTraceRequest request = TwoLayerTrace({"bf16", "mxfp8"});
  mistake.make(request, *request.mutable_trace());
  std::string text;
  EXPECT_EQ(FieldRefused(request, &text), mistake.field);
  EXPECT_THAT(text, HasSubstr(mistake.text));
  EXPECT_EQ(sessions_.usage().open, 0);
}
INSTANTIATE_TEST_SUITE_P(All, RefusalTest, testing::Range(0, static_cast<int>(Mistakes().size())));

}  // namespace QG_TEST_FILE
}  // namespace quantgate
