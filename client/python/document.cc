#include "client/python/document.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <sstream>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "client/layer_report.h"
#include "client/python/messages.h"
#include "server/report/render_html.h"
#include "server/report/render_table.h"
#include "server/report/report_json.h"
#include "server/report/report_junit.h"

namespace nb = nanobind;

namespace quantgate::python {
namespace {

std::string TextOf(const Document& document) {
  std::ostringstream text;
  PrintReport(document.report, /*uses_colour=*/false, text);
  return text.str();
}

/// The outputs of one variant, as NamedTensor messages.
std::vector<nb::bytes> OutputsOf(const Document& document, int variant) {
  std::vector<nb::bytes> outputs;
  for (const v1::NamedTensor& tensor : OutputTensors(document.report.run.variants(variant))) {
    if (tensor.has_data() || tensor.has_digest()) outputs.push_back(BytesOf(tensor));
  }
  return outputs;
}

}  // namespace

void BindDocuments(nb::module_& module) {
  nb::class_<Document>(module, "Document")
      .def_prop_ro("passed", [](const Document& self) { return self.report.verdict.pass(); })
      .def_prop_ro("variant_count",
                   [](const Document& self) { return self.report.run.variants_size(); })
      .def("outputs", &OutputsOf, nb::arg("variant"))
      .def("text", &TextOf)
      .def("json", [](const Document& self) { return JsonDocument(self.report); })
      .def("html", [](const Document& self) { return RenderHtml(self.report); })
      .def("junit", [](const Document& self) {
        return ReportJunit(self.report, {"localhost", absl::Now()});
      });
}

}  // namespace quantgate::python
