#include "server/wire/page.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "server/limits.h"
#include "server/wire/convert_tensor.h"

namespace quantgate {

absl::StatusOr<Page> PageFromProto(int page_size, const std::string& page_token) {
  Page page;
  page.size = page_size == 0 ? kPageSizeDefault : page_size;
  if (page.size < 0 || page.size > kPageSizeMax) {
    return Refuse("page_size", absl::StrCat(page_size),
                  absl::StrCat("a page has 1 to ", kPageSizeMax, " entries"));
  }
  if (page_token.empty()) return page;
  if (!absl::SimpleAtoi(page_token, &page.before_id) || page.before_id <= 0) {
    return Refuse("page_token", Printable(page_token),
                  "must be the next_page_token of the page before");
  }
  return page;
}

std::string PageToken(int64_t before_id) { return before_id == 0 ? "" : absl::StrCat(before_id); }

}  // namespace quantgate
