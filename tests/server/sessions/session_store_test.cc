// The store of training sessions: places, bytes, leases, who gives way to whom, and what late calls
// are told.
#include "server/sessions/session_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

const Sha256 kContent = Sha256Of({});

class SessionStoreTest : public ::testing::Test {
 protected:
  SessionStoreTest() {
    limits_.sessions_max = 3;
    limits_.lease_default = absl::Minutes(10);
    limits_.idle_min = absl::Minutes(1);
  }
  void Start() {
    store_ = std::make_unique<SessionStore>(limits_, [this] { return now_; });
  }
  std::unique_ptr<OneRankSession> Training() {
    SessionSpec spec{.layers = {{"fc", {}}}, .recipe = *Recipe::Parse("bf16")};
    auto training = OneRankSession::Open(
        *device_.engine, spec,
        {{"fc.weight", Generated(Distribution::kNormal, 1, DType::kBF16, {16, 16})}}, nullptr);
    EXPECT_TRUE(training.ok()) << training.status();
    return *std::move(training);
  }
  absl::StatusOr<std::string> Open(const std::string& request_id = "") {
    auto place = store_->Reserve(request_id, kContent);
    if (!place.ok()) return place.status();
    auto record =
        store_->Open(*std::move(place), device_, limits_.lease_default, Training(), spec_text_);
    if (!record.ok()) return record.status();
    return record->id;
  }
  std::string MessageOfUse(const std::string& id, absl::StatusCode code) {
    const absl::Status status = store_->Use(id).status();
    EXPECT_EQ(status.code(), code) << status;
    return std::string(status.message());
  }

  SessionLimits limits_;
  std::string spec_text_;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  Device device_{MakeCpuEngine({.threads = 1}), 0};
  std::unique_ptr<SessionStore> store_;
};

constexpr auto kEnded = absl::StatusCode::kFailedPrecondition;

TEST_F(SessionStoreTest, TellsWhyASessionEnded) {
  Start();
  const std::string closed = *Open();
  EXPECT_EQ(store_->Close(closed)->phase, SessionPhase::kClosed);
  EXPECT_EQ(store_->Close(closed)->phase, SessionPhase::kClosed);
  EXPECT_THAT(MessageOfUse(closed, kEnded), HasSubstr("the session is closed"));

  const std::string expired = *Open();
  now_ += absl::Minutes(10) + absl::Seconds(1);
  EXPECT_THAT(MessageOfUse(expired, kEnded), HasSubstr("the session is expired"));

  const std::string evicted = *Open();
  now_ += absl::Seconds(90);
  EXPECT_TRUE(store_->Evict());
  EXPECT_THAT(MessageOfUse(evicted, kEnded), HasSubstr("the session is evicted"));

  EXPECT_THAT(MessageOfUse("session-0", absl::StatusCode::kNotFound), HasSubstr("session-0"));
  const SessionUsage usage = store_->usage();
  EXPECT_EQ(usage.open, 0);
  EXPECT_EQ(usage.bytes, 0);
  EXPECT_EQ(usage.closed, 1);
  EXPECT_EQ(usage.expired, 1);
  EXPECT_EQ(usage.evicted, 1);
}

TEST_F(SessionStoreTest, TheLeastRecentlyUsedIdleSessionGivesWay) {
  Start();
  const std::string a = *Open(), b = *Open(), c = *Open();
  // All are fresh: none gives way.
  const absl::Status full = Open().status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  EXPECT_THAT(std::string(full.message()), HasSubstr("none is idle"));
  now_ += absl::Seconds(30);
  EXPECT_TRUE(store_->Use(a).ok());
  now_ += absl::Seconds(40);
  const std::string d = *Open();
  EXPECT_EQ(store_->Find(b)->phase, SessionPhase::kEvicted);
  for (const std::string& id : {a, c, d}) EXPECT_EQ(store_->Find(id)->phase, SessionPhase::kOpen);
}

TEST_F(SessionStoreTest, ATraceThatFindsNoPlacesEvictsNobody) {
  Start();
  const auto idle = Open();
  ASSERT_TRUE(idle.ok());
  ASSERT_TRUE(Open().ok());
  now_ += limits_.idle_min;
  auto busy = store_->Reserve("", kContent);
  ASSERT_TRUE(busy.ok());
  // Two of three places could be had.
  const absl::Status refused = store_->ReserveAll(3).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("the trace's variants need 3 places, and 2 are free or idle"));
  EXPECT_EQ(store_->Find(*idle)->phase, SessionPhase::kOpen);
  EXPECT_EQ(store_->usage().evicted, 0);
  {
    const auto places = store_->ReserveAll(2);
    ASSERT_TRUE(places.ok()) << places.status();
    EXPECT_EQ(places->size(), 2u);
    EXPECT_EQ(store_->Find(*idle)->phase, SessionPhase::kEvicted);
    EXPECT_EQ(store_->usage().evicted, 2);
    EXPECT_FALSE(Open().ok());
  }
  EXPECT_TRUE(Open().ok());
}

// Of three places the trace's session has one before, while and after it is made anew.
TEST_F(SessionStoreTest, AHandedOverPlaceIsNobodyElses) {
  const int64_t session_bytes = Training()->bytes();
  limits_.bytes_max = 3 * session_bytes;
  Start();
  auto first = store_->Reserve("", kContent);
  ASSERT_TRUE(first.ok());
  const auto record =
      store_->Open(*std::move(first), device_, absl::Minutes(1), Training(), "", "run-1");
  ASSERT_TRUE(record.ok()) << record.status();
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(store_->HandOver(record->id, "run-2").status().code(),
            absl::StatusCode::kFailedPrecondition);
  {
    auto place = store_->HandOver(record->id, "run-1");
    ASSERT_TRUE(place.ok()) << place.status();
    EXPECT_EQ(store_->Find(record->id)->phase, SessionPhase::kClosed);
    EXPECT_EQ(store_->usage().bytes, 3 * session_bytes);
    const absl::Status full = Open().status();
    EXPECT_THAT(std::string(full.message()),
                HasSubstr("sessions, 1 of them reserved: 3 of 3, and none is idle"));
    const auto next =
        store_->Open(*std::move(place), device_, absl::Minutes(1), Training(), "", "run-1");
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_EQ(store_->usage().bytes, 3 * session_bytes);
    EXPECT_TRUE(store_->HandOver(next->id, "run-1").ok());
  }
  // A place that nothing was opened in is free again, with its bytes.
  EXPECT_EQ(store_->usage().bytes, 2 * session_bytes);
  EXPECT_TRUE(Open().ok());
}

TEST_F(SessionStoreTest, ASessionInUseNeitherExpiresNorGivesWay) {
  Start();
  const std::string id = *Open();
  {
    const auto use = store_->Use(id);
    ASSERT_TRUE(use.ok());
    now_ += absl::Hours(1);
    store_->ExpireLeases();
    EXPECT_FALSE(store_->Evict());
    EXPECT_EQ(store_->Find(id)->phase, SessionPhase::kOpen);
  }
  // The lease begins anew with the end of the use.
  now_ += absl::Minutes(9);
  store_->ExpireLeases();
  EXPECT_TRUE(store_->Use(id).ok());
  now_ += absl::Minutes(11);
  store_->ExpireLeases();
  EXPECT_EQ(store_->Find(id)->phase, SessionPhase::kExpired);
}

TEST_F(SessionStoreTest, AClosedSessionLivesUntilItsUseEnds) {
  Start();
  const std::string id = *Open();
  auto use = store_->Use(id);
  ASSERT_TRUE(store_->Close(id).ok());
  EXPECT_EQ((*use)->training->step_count(), 0);
  EXPECT_FALSE(store_->Use(id).ok());
}

TEST_F(SessionStoreTest, BytesAreBoundedTogether) {
  const int64_t one = Training()->bytes();
  ASSERT_EQ(one, 16 * 16 * 2);
  limits_.bytes_max = 2 * one + one / 2;
  Start();
  const std::string a = *Open(), b = *Open();
  EXPECT_EQ(store_->usage().bytes, 2 * one);
  EXPECT_EQ(Open().status().code(), absl::StatusCode::kResourceExhausted);
  // A step of one may take what is left.
  auto use = store_->Use(b);
  store_->LimitBytes(*use);
  ForwardStep forward;
  forward.x = Generated(Distribution::kNormal, 2, DType::kBF16, {64, 16});
  const absl::Status refused = (*use)->training->Forward(forward, nullptr).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  forward.x = Generated(Distribution::kNormal, 2, DType::kBF16, {8, 16});
  EXPECT_TRUE((*use)->training->Forward(forward, nullptr).ok());
  EXPECT_TRUE(store_->StepEnded(*use, 0).ok());
  EXPECT_EQ(store_->usage().bytes, 2 * one + 8 * 16 * 2);
  EXPECT_EQ(store_->Find(b)->step, 1);
  EXPECT_EQ(store_->Find(b)->microbatches, std::vector<std::string>{"0"});
}

TEST_F(SessionStoreTest, SpecsAndResponsesThatAreKeptCount) {
  spec_text_ = std::string(1000, 's');
  Start();
  const auto use = store_->Use(*Open());
  EXPECT_EQ(store_->usage().bytes, 16 * 16 * 2 + 1000);
  EXPECT_TRUE(store_->StepEnded(*use, 24).ok());
  EXPECT_EQ(store_->usage().bytes, 16 * 16 * 2 + 1000 + 24);
}

TEST_F(SessionStoreTest, ARequestOpensOneSession) {
  Start();
  const std::string id = *Open("request");
  EXPECT_EQ(**store_->FindRequest("request", kContent), id);
  EXPECT_FALSE(store_->FindRequest("another", kContent)->has_value());
  const Sha256 other = Sha256Of(std::as_bytes(std::span("x", 1)));
  EXPECT_EQ(store_->FindRequest("request", other).status().code(),
            absl::StatusCode::kAlreadyExists);
  {
    const auto place = store_->Reserve("slow", kContent);
    ASSERT_TRUE(place.ok());
    EXPECT_EQ(store_->Reserve("slow", kContent).status().code(), absl::StatusCode::kAborted);
  }
  EXPECT_TRUE(store_->Reserve("slow", kContent).ok());
}

TEST_F(SessionStoreTest, APlaceThatIsNotTakenIsGivenBack) {
  limits_.sessions_max = 1;
  Start();
  { ASSERT_TRUE(store_->Reserve("", kContent).ok()); }
  {
    const auto place = store_->Reserve("", kContent);
    EXPECT_FALSE(store_->Reserve("", kContent).ok());
  }
  EXPECT_TRUE(Open().ok());
}

TEST_F(SessionStoreTest, ListsOpenSessionsNewestFirst) {
  Start();
  const std::string a = *Open(), b = *Open(), c = *Open();
  ASSERT_TRUE(store_->Close(b).ok());
  const auto first = store_->List(0, 1);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].id, c);
  const auto rest = store_->List(first[0].number, 10);
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].id, a);
}

TEST_F(SessionStoreTest, ManyThreadsUseOneSession) {
  limits_.sessions_max = 64;
  Start();
  const std::string shared = *Open();
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        const auto use = store_->Use(shared);
        ASSERT_TRUE(use.ok());
        const std::lock_guard lock((*use)->mutex);
        store_->LimitBytes(*use);
        EXPECT_TRUE(store_->StepEnded(*use, 0).ok());
        if (i % 10 == 0) {
          const auto own = Open();
          ASSERT_TRUE(own.ok()) << own.status();
          ASSERT_TRUE(store_->Close(*own).ok());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store_->usage().open, 1);
  EXPECT_EQ(store_->usage().bytes, 16 * 16 * 2);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
