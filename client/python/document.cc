#include "client/python/document.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <sstream>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "client/layer_report.h"
#include "client/python/messages.h"
#include "server/report/answers/render_explanation.h"
#include "server/report/answers/render_info.h"
#include "server/report/answers/render_scenarios.h"
#include "server/report/answers/render_step.h"
#include "server/report/answers/scenario_junit.h"
#include "server/report/render_html.h"
#include "server/report/render_table.h"
#include "server/report/report_json.h"
#include "server/report/report_junit.h"

namespace nb = nanobind;

namespace quantgate::python {
namespace {

std::vector<nb::bytes> StoredTensors(const std::vector<v1::NamedTensor>& tensors) {
  std::vector<nb::bytes> stored;
  for (const v1::NamedTensor& tensor : tensors) {
    if (tensor.has_data() || tensor.has_digest()) stored.push_back(BytesOf(tensor));
  }
  return stored;
}

/// The outputs of one variant, as NamedTensor messages.
std::vector<nb::bytes> OutputsOf(const Document& document, int variant) {
  return StoredTensors(OutputTensors(document.report.run.variants(variant)));
}

std::vector<nb::bytes> StepOutputsOf(const TraceDocument& document, int step, int variant) {
  const auto found = document.outputs.find({step, variant});
  return found == document.outputs.end() ? std::vector<nb::bytes>() : StoredTensors(found->second);
}

/// The text that `print` writes without colours.
template <typename Print>
std::string Printed(const Print& print) {
  std::ostringstream text;
  print(/*uses_colour=*/false, text);
  return text.str();
}

template <typename Message>
Message ParsedAs(const nb::bytes& bytes) {
  Message message;
  ParseInto(bytes, message);
  return message;
}

void BindTraceDocuments(nb::module_& module) {
  nb::class_<TraceDocument>(module, "TraceDocument")
      .def_prop_ro("passed",
                   [](const TraceDocument& self) {
                     return !self.report.verdict.has_value() || self.report.verdict->pass();
                   })
      .def_prop_ro("step_count", [](const TraceDocument& self) { return self.report.steps.size(); })
      .def_prop_ro("variant_count",
                   [](const TraceDocument& self) { return self.report.variants.size(); })
      .def("outputs", &StepOutputsOf, nb::arg("step"), nb::arg("variant"))
      .def("text",
           [](const TraceDocument& self) {
             return Printed([&](bool uses_colour, std::ostream& out) {
               PrintTrace(self.report, uses_colour, out);
             });
           })
      .def("json", [](const TraceDocument& self) { return TraceJson(self.report); })
      .def("html", [](const TraceDocument& self) { return RenderHtml(self.report); });
}

void BindScenarioDocuments(nb::module_& module) {
  nb::class_<ScenarioDocument>(module, "ScenarioDocument")
      .def("finished", [](const ScenarioDocument& self) { return JsonTextOf(self.finished); })
      .def("text",
           [](const ScenarioDocument& self) {
             return Printed([&](bool uses_colour, std::ostream& out) {
               PrintScenarios(self.events, uses_colour, out);
               out << ScenarioSummary(self.events) << "\n";
             });
           })
      .def("junit", [](const ScenarioDocument& self) {
        std::vector<v1::ScenarioEvent> events = self.events;
        *events.emplace_back().mutable_finished() = self.finished;
        return ScenarioJunit(events, {"localhost", absl::Now()});
      });
}

/// Texts of what unary calls answered, from its bytes.
void BindAnswers(nb::module_& module) {
  module.def(
      "explanation_text",
      [](const nb::bytes& response) {
        const auto explanation = ParsedAs<v1::ExplainResponse>(response);
        return Printed([&](bool uses_colour, std::ostream& out) {
          PrintExplanation(explanation, uses_colour, out);
        });
      },
      nb::arg("response"));
  module.def(
      "info_text",
      [](const nb::bytes& capabilities, const nb::bytes& recipes, const nb::bytes& arithmetics) {
        const InfoFacts facts = {ParsedAs<v1::Capabilities>(capabilities),
                                 ParsedAs<v1::ListRecipesResponse>(recipes),
                                 ParsedAs<v1::ListArithmeticsResponse>(arithmetics)};
        return Printed(
            [&](bool uses_colour, std::ostream& out) { PrintInfo(facts, uses_colour, out); });
      },
      nb::arg("capabilities"), nb::arg("recipes"), nb::arg("arithmetics"));
  module.def(
      "step_text",
      [](const nb::bytes& response) {
        const auto step = ParsedAs<v1::SessionStepResponse>(response);
        return Printed(
            [&](bool uses_colour, std::ostream& out) { PrintSessionStep(step, uses_colour, out); });
      },
      nb::arg("response"));
}

}  // namespace

void BindDocuments(nb::module_& module) {
  nb::class_<Document>(module, "Document")
      .def_prop_ro("passed", [](const Document& self) { return self.report.verdict.pass(); })
      .def_prop_ro("variant_count",
                   [](const Document& self) { return self.report.run.variants_size(); })
      .def("outputs", &OutputsOf, nb::arg("variant"))
      .def("text",
           [](const Document& self) {
             return Printed([&](bool uses_colour, std::ostream& out) {
               PrintReport(self.report, uses_colour, out);
             });
           })
      .def("json", [](const Document& self) { return JsonDocument(self.report); })
      .def("html", [](const Document& self) { return RenderHtml(self.report); })
      .def("junit", [](const Document& self) {
        return ReportJunit(self.report, {"localhost", absl::Now()});
      });
  BindTraceDocuments(module);
  BindScenarioDocuments(module);
  BindAnswers(module);
}

}  // namespace quantgate::python
