// What earlier versions left behind (tests/data/v*): their data directories are opened and give the
// answers that they gave, their messages are read as they were meant, and today's API has all that
// theirs had.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/unknown_field_set.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "quantgate/v1/scenarios_service.pb.h"
#include "quantgate/v1/sessions_service.pb.h"
#include "tests/server/store/exchanges.h"
#include "tests/server/test_server.h"

namespace quantgate {
namespace QG_TEST_FILE {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::Message;
using google::protobuf::ServiceDescriptor;

constexpr char kKept[] = QUANTGATE_SOURCE_DIR "/tests/data/v0.1.0/";

std::string ReadKept(const std::string& name) {
  std::ifstream file(kKept + name, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<Exchange> Recorded(const std::string& name) {
  auto exchanges = ExchangesFrom(ReadKept(name));
  EXPECT_TRUE(exchanges.ok()) << exchanges.status();
  return exchanges.ok() ? *std::move(exchanges) : std::vector<Exchange>();
}

/// A server on a copy of the data directory that the version left.
class KeptServer {
 public:
  KeptServer() {
    std::filesystem::copy(std::string(kKept) + "data", directory_.path(),
                          std::filesystem::copy_options::recursive);
    server_ = std::make_unique<TestServer>(
        [this](ServerOptions& options) { options.data_dir = directory_.path(); });
  }
  TestServer& operator*() { return *server_; }
  TestServer* operator->() { return server_.get(); }

 private:
  TemporaryDirectory directory_;
  std::unique_ptr<TestServer> server_;
};

TEST(KeptDataTest, ItsDataDirectoryGivesTheAnswersThatItGave) {
  const std::vector<Exchange> answers = Recorded("answers.txt");
  ASSERT_GT(answers.size(), 40u);
  KeptServer server;
  for (int round = 0; round < 2; ++round, server->Restart()) {
    int number = 0;
    for (const Exchange& recorded : answers) {
      const Exchange now = Ask(server->channel(), recorded.method, recorded.requests);
      EXPECT_EQ(now.status, recorded.status) << number << " " << recorded.method;
      EXPECT_EQ(ComparableLines(now), ComparableLines(recorded))
          << number << " " << recorded.method;
    }
  }
}

TEST(KeptDataTest, ItsRunsAreUnverifiedAndLaterOnesAreNot) {
  KeptServer server;
  v1::ExecuteRequest request;
  *request.mutable_spec() = LinearSpec(32, 32, 32);
  *request.mutable_spec()->add_variants() = MakeVariant("bf16", "none", "sm90");
  v1::RunFinished finished;
  ASSERT_TRUE(ExecuteToEnd(*server, request, finished).ok());
  server->Restart();
  grpc::ClientContext context;
  v1::ListRunsResponse runs;
  ASSERT_TRUE(server->engine().ListRuns(&context, {}, &runs).ok());
  ASSERT_EQ(runs.runs_size(), 5);
  for (int i = 0; i < runs.runs_size(); ++i) {
    EXPECT_EQ(runs.runs(i).unverified(), i > 0) << i;
    v1::WaitRunRequest wait;
    wait.set_run_id(runs.runs(i).run_id());
    grpc::ClientContext wait_context;
    const auto reader = server->engine().WaitRun(&wait_context, wait);
    int events = 0;
    for (v1::RunEvent event; reader->Read(&event); ++events) {
      EXPECT_EQ(event.unverified(), i > 0) << i;
    }
    EXPECT_GE(events, 2);
  }
}

// The session's tensors themselves, which no answer of Restore has.
TEST(KeptDataTest, ItsCheckpointHasTheTensorsThatTheSessionHad) {
  v1::Session saved;
  v1::OpenSessionRequest opened;
  v1::CheckpointResponse checkpoint;
  for (const Exchange& exchange : Recorded("fill.txt")) {
    if (exchange.method == "quantgate.v1.Sessions/Get")
      saved.ParseFromString(exchange.responses[0]);
    if (exchange.method == "quantgate.v1.Sessions/Open")
      opened.ParseFromString(exchange.requests[0]);
    if (exchange.method == "quantgate.v1.Sessions/Checkpoint") {
      checkpoint.ParseFromString(exchange.responses[0]);
    }
  }
  ASSERT_GT(saved.tensors_size(), 3);
  KeptServer server;
  v1::RestoreSessionRequest restore;
  *restore.mutable_checkpoint() = checkpoint.digest();
  *restore.mutable_spec() = opened.spec();
  const Exchange restored =
      Ask(server->channel(), "quantgate.v1.Sessions/Restore", {restore.SerializeAsString()});
  ASSERT_EQ(restored.status, 0);
  v1::Session session;
  ASSERT_TRUE(session.ParseFromString(restored.responses[0]));
  v1::GetSessionRequest get;
  get.set_session_id(session.session_id());
  get.set_with_tensors(true);
  const Exchange got =
      Ask(server->channel(), "quantgate.v1.Sessions/Get", {get.SerializeAsString()});
  ASSERT_EQ(got.status, 0);
  ASSERT_TRUE(session.ParseFromString(got.responses[0]));
  EXPECT_EQ(session.step(), saved.step());
  ASSERT_EQ(session.tensors_size(), saved.tensors_size());
  for (int i = 0; i < session.tensors_size(); ++i) {
    EXPECT_EQ(session.tensors(i).SerializeAsString(), saved.tensors(i).SerializeAsString())
        << saved.tensors(i).name();
  }
}

TEST(KeptDataTest, ItsBlobsAreNotTakenWithoutItsDatabase) {
  const TemporaryDirectory directory;
  ServerOptions options;
  options.data_dir = directory.path() + "/data";
  std::filesystem::copy(std::string(kKept) + "data", options.data_dir,
                        std::filesystem::copy_options::recursive);
  std::filesystem::resize_file(options.data_dir + "/quantgate.db", 0);
  const absl::Status refused = Server::Start(options).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("quantgate.db is empty"));
  options.begins_anew = true;
  EXPECT_TRUE(Server::Start(options).ok());
  // Once: now there is a database.
  EXPECT_TRUE(absl::IsFailedPrecondition(Server::Start(options).status()));
  options.begins_anew = false;
  EXPECT_TRUE(Server::Start(options).ok());
}

bool HasUnknownFields(const Message& message) {
  const auto& reflection = *message.GetReflection();
  if (!reflection.GetUnknownFields(message).empty()) return true;
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      if (HasUnknownFields(reflection.GetMessage(message, field))) return true;
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
      if (HasUnknownFields(reflection.GetRepeatedMessage(message, field, i))) return true;
    }
  }
  return false;
}

void ExpectRead(const Descriptor& type, const std::string& bytes, const std::string& where) {
  const auto* prototype =
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(&type);
  const std::unique_ptr<Message> message(prototype->New()), again(prototype->New());
  ASSERT_TRUE(message->ParseFromString(bytes)) << where;
  EXPECT_FALSE(HasUnknownFields(*message)) << where << " has a field that today's has not";
  const std::string written = message->SerializeAsString();
  EXPECT_EQ(written.size(), bytes.size()) << where;
  ASSERT_TRUE(again->ParseFromString(written)) << where;
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(*message, *again)) << where;
}

TEST(KeptDataTest, ItsMessagesAreReadAndWritten) {
  // So that the linker keeps them.
  ASSERT_NE(v1::ListScenariosRequest::descriptor(), nullptr);
  ASSERT_NE(v1::OpenSessionRequest::descriptor(), nullptr);
  std::set<std::string> methods;
  size_t message_count = 0;
  for (const char* file : {"fill.txt", "answers.txt"}) {
    for (const Exchange& exchange : Recorded(file)) {
      std::string name = exchange.method;
      name[name.find('/')] = '.';
      const auto* method = DescriptorPool::generated_pool()->FindMethodByName(name);
      ASSERT_NE(method, nullptr) << exchange.method;
      methods.insert(name);
      for (const std::string& bytes : exchange.requests) {
        ExpectRead(*method->input_type(), bytes, exchange.method + " request");
        ++message_count;
      }
      for (const std::string& bytes : exchange.responses) {
        if (IsDigest(bytes)) continue;
        ExpectRead(*method->output_type(), bytes, exchange.method + " response");
        ++message_count;
      }
    }
  }
  EXPECT_GE(methods.size(), 26u);
  EXPECT_GE(message_count, 150u);
}

/// Whether what a client of the old API sends and reads is the same in today's.
class Superset {
 public:
  void ExpectOf(const FileDescriptor& file) {
    for (int i = 0; i < file.message_type_count(); ++i) ExpectOf(*file.message_type(i));
    for (int i = 0; i < file.enum_type_count(); ++i) ExpectOf(*file.enum_type(i));
    for (int i = 0; i < file.service_count(); ++i) ExpectOf(*file.service(i));
  }
  int compared() const { return compared_; }

 private:
  static std::string TypeOf(const FieldDescriptor& field) {
    std::string text = std::string(field.is_repeated() ? "repeated " : "") + field.type_name();
    if (field.has_presence()) text += " with presence";
    if (field.message_type() != nullptr) text += " " + field.message_type()->full_name();
    if (field.enum_type() != nullptr) text += " " + field.enum_type()->full_name();
    if (const auto* oneof = field.real_containing_oneof()) text += " in " + oneof->name();
    return text;
  }
  void ExpectOf(const Descriptor& old) {
    const Descriptor* now = today_.FindMessageTypeByName(old.full_name());
    ASSERT_NE(now, nullptr) << old.full_name();
    for (int i = 0; i < old.field_count(); ++i, ++compared_) {
      const FieldDescriptor& field = *old.field(i);
      const FieldDescriptor* same = now->FindFieldByNumber(field.number());
      ASSERT_NE(same, nullptr) << field.full_name() << " = " << field.number();
      EXPECT_EQ(same->name(), field.name()) << old.full_name();
      EXPECT_EQ(TypeOf(*same), TypeOf(field)) << field.full_name();
    }
    for (int i = 0; i < old.nested_type_count(); ++i) ExpectOf(*old.nested_type(i));
    for (int i = 0; i < old.enum_type_count(); ++i) ExpectOf(*old.enum_type(i));
  }
  void ExpectOf(const EnumDescriptor& old) {
    const EnumDescriptor* now = today_.FindEnumTypeByName(old.full_name());
    ASSERT_NE(now, nullptr) << old.full_name();
    for (int i = 0; i < old.value_count(); ++i, ++compared_) {
      const auto* same = now->FindValueByName(old.value(i)->name());
      ASSERT_NE(same, nullptr) << old.value(i)->full_name();
      EXPECT_EQ(same->number(), old.value(i)->number()) << old.value(i)->full_name();
    }
  }
  void ExpectOf(const ServiceDescriptor& old) {
    const ServiceDescriptor* now = today_.FindServiceByName(old.full_name());
    ASSERT_NE(now, nullptr) << old.full_name();
    for (int i = 0; i < old.method_count(); ++i, ++compared_) {
      const auto& method = *old.method(i);
      const auto* same = now->FindMethodByName(method.name());
      ASSERT_NE(same, nullptr) << method.full_name();
      EXPECT_EQ(same->input_type()->full_name(), method.input_type()->full_name());
      EXPECT_EQ(same->output_type()->full_name(), method.output_type()->full_name());
      EXPECT_EQ(same->client_streaming(), method.client_streaming()) << method.full_name();
      EXPECT_EQ(same->server_streaming(), method.server_streaming()) << method.full_name();
    }
  }

  const DescriptorPool& today_ = *DescriptorPool::generated_pool();
  int compared_ = 0;
};

TEST(KeptDataTest, TodaysApiHasAllThatItsHad) {
  ASSERT_NE(v1::SessionTrace::descriptor(), nullptr);  // So that the linker keeps its file.
  google::protobuf::FileDescriptorSet files;
  ASSERT_TRUE(files.ParseFromString(ReadKept("descriptors.pb")));
  DescriptorPool pool;
  Superset superset;
  int services = 0;
  for (const auto& file : files.file()) {
    const FileDescriptor* built = pool.BuildFile(file);
    ASSERT_NE(built, nullptr) << file.name();
    if (built->package() != "quantgate.v1") continue;
    superset.ExpectOf(*built);
    services += built->service_count();
  }
  EXPECT_EQ(services, 6);
  EXPECT_GT(superset.compared(), 400);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
