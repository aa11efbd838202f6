// An engine that hands every operation to another one, so that its work takes the path that it
// takes without it. Tests and scenarios override what they want to watch or to disturb.
#pragma once

#include <string>
#include <utility>

#include "kernels/engine/engine.h"

namespace quantgate {

class ForwardingEngine : public Engine {
 public:
  explicit ForwardingEngine(Engine& engine) : engine_(engine) {}
  ForwardingEngine(const ForwardingEngine&) = delete;  // What is around another one says so.
  ForwardingEngine& operator=(const ForwardingEngine&) = delete;
  Engine& forwarded() { return engine_; }

#define QG_ENGINE_QUERY(result, Name, parameters, arguments) \
  result Name parameters override { return engine_.Name arguments; }
#define QG_ENGINE_OPERATION(result, Name, parameters, arguments) \
  result Name parameters override {                              \
    const Operation operation(*this, #Name);                     \
    return Watched(engine_.Name arguments);                      \
  }
#include "kernels/engine/operations.inc"

  /// The name under which the reading of a report is told that was begun before: also an operation.
  static constexpr char kReadReport[] = "ReadReport";

 protected:
  /// Called before each operation with its name, that of its function.
  virtual void OnOperation(const std::string& name) {}
  /// Called after it.
  virtual void AfterOperation(const std::string& name) {}

 private:
  /// One operation under way.
  class Operation {
   public:
    Operation(ForwardingEngine& engine, std::string name)
        : engine_(engine), name_(std::move(name)) {
      engine_.OnOperation(name_);
    }
    ~Operation() { engine_.AfterOperation(name_); }
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;

   private:
    ForwardingEngine& engine_;
    const std::string name_;
  };

  template <typename Result>
  Result Watched(Result result) {
    return result;
  }
  template <typename Report>
  absl::StatusOr<Deferred<Report>> Watched(absl::StatusOr<Deferred<Report>> started) {
    if (!started.ok()) return started.status();
    return Deferred<Report>([this, read = *std::move(started)]() mutable {
      const Operation operation(*this, kReadReport);
      return std::move(read)();
    });
  }

  Engine& engine_;
};

}  // namespace quantgate
