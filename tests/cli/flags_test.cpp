#include "cli/flags.h"

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "cli/arguments.h"
#include "cli/guards.h"
#include "cli/help.h"
#include "support/shared.h"

namespace dgemma::cli {
namespace {

using Words = std::vector<std::string>;

Result<Arguments> parse(const Words& args, const Words& environment = {}) {
    return Arguments::parse(args, environment);
}

std::string message_of(const Words& args, const Words& environment = {}) {
    const auto result = parse(args, environment);
    if (result) return "(accepted)";
    EXPECT_EQ(result.error().kind, ErrorKind::usage);
    EXPECT_EQ(result.error().message.find('\n'), std::string::npos);
    return result.error().message;
}

TEST(FlagTable, IsInTheOrderOfItsEnumerationAndHasNoDoubles) {
    std::set<std::string_view> names;
    std::set<char> shorts;
    std::size_t index = 0;
    for (const FlagInfo& flag : flags()) {
        EXPECT_EQ(static_cast<std::size_t>(flag.flag), index++) << flag.name;
        EXPECT_TRUE(names.insert(flag.name).second) << flag.name;
        EXPECT_TRUE(flag.short_name == 0 || shorts.insert(flag.short_name).second) << flag.short_name;
        EXPECT_FALSE(flag.help.empty()) << flag.name;
        EXPECT_EQ(flag.value_name.empty(), flag.kind == FlagKind::toggle) << flag.name;
        EXPECT_TRUE(flag.choices.empty() || flag.kind == FlagKind::choice || flag.kind == FlagKind::whole)
            << flag.name;
        EXPECT_FALSE(flag.choices.empty() && flag.kind == FlagKind::choice) << flag.name;
        const bool number = flag.kind == FlagKind::whole || flag.kind == FlagKind::real;
        EXPECT_EQ(flag.least < flag.most, number) << flag.name;
    }
}

TEST(FlagTable, VerbsAreInTheOrderOfTheirEnumerationAndEachHasAnExample) {
    std::size_t index = 0;
    for (const VerbInfo& verb : verbs()) {
        EXPECT_EQ(static_cast<std::size_t>(verb.verb), index++);
        EXPECT_NE(verb.example.find("dgemma " + std::string(verb.name)), std::string_view::npos);
        EXPECT_NE(verb_help(verb.verb).find(verb.example), std::string::npos);
    }
}

TEST(FlagTable, HelpNamesEveryFlagOfAVerbAndNoOther) {
    for (const VerbInfo& verb : verbs()) {
        const std::string help = verb_help(verb.verb);
        for (const FlagInfo& flag : flags()) {
            const bool belongs = flag.verbs == 0 || (flag.verbs & bit_of(verb.verb)) != 0;
            const std::string line = " --" + std::string(flag.name) +
                                     (flag.value_name.empty() ? " " : " " + std::string(flag.value_name));
            EXPECT_EQ(help.find(line) != std::string::npos, belongs) << verb.name << " --" << flag.name;
        }
    }
}

TEST(FlagTable, TheDocumentIsCurrent) {
    std::ifstream file(testing::source_dir() / "docs/FLAGS.md");
    std::stringstream text;
    text << file.rdbuf();
    EXPECT_TRUE(text.str() == markdown_help()) << "write it anew: dgemma --help-markdown > docs/FLAGS.md";
}

TEST(Arguments, ReadsValuesInEverySpelling) {
    const auto args = parse({"ask", "--steps", "12", "--seed=18446744073709551615", "-j2", "-vn", "7", "What",
                             "is", "it?", "--stop", "a", "--stop=b", "--", "--steps"});
    ASSERT_TRUE(args) << args.error().message;
    EXPECT_EQ(args->verb(), Verb::ask);
    EXPECT_EQ(args->whole(Flag::steps), 12u);
    EXPECT_EQ(args->whole(Flag::seed), 18446744073709551615u);
    EXPECT_EQ(args->whole_or(Flag::threads, 0), 2);
    EXPECT_EQ(args->whole_or(Flag::max_tokens, 0), 7);
    EXPECT_TRUE(args->on(Flag::stats));
    EXPECT_FALSE(args->on(Flag::think));
    EXPECT_EQ(args->words(), (Words{"What", "is", "it?", "--steps"}));
    EXPECT_EQ(args->list(Flag::stop), (Words{"a", "b"}));
    EXPECT_EQ(args->whole_or(Flag::ctx, 99), 99);
}

TEST(Arguments, LeavesThePromptAlone) {
    // Whatever a prompt looks like inside, it is one word of the shell.
    const Words prompts = {"[1,2]", "- a list", "{}", "a=b", "-", ""};
    for (const std::string& prompt : prompts) {
        const auto args = parse({"ask", "--", prompt});
        ASSERT_TRUE(args);
        EXPECT_EQ(args->words(), Words{prompt});
    }
    const auto args = parse({"ask", "[1,2]", "", "-"});
    ASSERT_TRUE(args);
    EXPECT_EQ(args->words(), (Words{"[1,2]", "", "-"}));
}

TEST(Arguments, TheLastValueCountsAndTogglesCanBeTurnedOff) {
    const auto args = parse({"ask", "--steps", "3", "--steps", "4", "--think", "--think=no"});
    ASSERT_TRUE(args);
    EXPECT_EQ(args->whole(Flag::steps), 4u);
    EXPECT_FALSE(args->on(Flag::think));
}

TEST(Arguments, RefusesNonsenseWithTheFlagTheValueAndTheRange) {
    EXPECT_EQ(message_of({"ask", "--steps", "-3"}),
              "--steps takes a whole number from 1 to 10000, not \"-3\".");
    EXPECT_EQ(message_of({"ask", "--steps="}),
              "--steps takes a whole number from 1 to 10000, not an empty value.");
    EXPECT_EQ(message_of({"ask", "--steps", "0"}),
              "--steps takes a whole number from 1 to 10000, not \"0\".");
    EXPECT_EQ(message_of({"ask", "--seed", "abc"}),
              "--seed takes a whole number from 0 to 18446744073709551615, not \"abc\".");
    EXPECT_EQ(message_of({"ask", "--seed", "18446744073709551616"}),
              "--seed takes a whole number from 0 to 18446744073709551615, not \"18446744073709551616\".");
    EXPECT_EQ(message_of({"ask", "--threads", "1e9"}),
              "--threads takes a whole number from 1 to 1024, not \"1e9\".");
    EXPECT_EQ(message_of({"ask", "--threads", "4 "}),
              "--threads takes a whole number from 1 to 1024, not \"4 \".");
    EXPECT_EQ(message_of({"ask", "--entropy-bound", "nan"}),
              "--entropy-bound takes a number above 0, at most 1000000, not \"nan\".");
    EXPECT_EQ(message_of({"ask", "--entropy-bound", "0"}),
              "--entropy-bound takes a number above 0, at most 1000000, not \"0\".");
    EXPECT_EQ(message_of({"ask", "--temperature", "1e999"}),
              "--temperature takes a number from 0 to 100, not \"1e999\".");
    EXPECT_EQ(message_of({"ask", "--steps"}),
              "--steps takes a whole number from 1 to 10000, and nothing follows it.");
    EXPECT_EQ(message_of({"ask", "--system", ""}),
              "--system takes a text that is not empty, not an empty value.");
    EXPECT_EQ(message_of({"ask", "--think=maybe"}), "--think takes yes or no, not \"maybe\".");
    EXPECT_EQ(message_of({"ask", "--sampler", "entropy"}),
              "--sampler takes entropy-bound or confidence-threshold, not \"entropy\".");
    EXPECT_EQ(message_of({"ask", "--noise", "torch"}),
              "--noise takes counter, mlx or torch-cpu, not \"torch\".");
    EXPECT_EQ(message_of({"ask", "--precision", "bf61"}),
              "--precision takes mixed, f32 or bf16, not \"bf61\"; did you mean bf16?");
}

TEST(Arguments, AMessageIsOneCleanLineWhateverTheValue) {
    const std::string message = message_of({"ask", "--seed", "1\n\x1b[2J\xff" + std::string(5000, 'x')});
    EXPECT_LT(message.size(), 300u);
    EXPECT_NE(message.find("\\x0A\\x1B[2J\\xFF"), std::string::npos) << message;
}

TEST(Arguments, SuggestsTheNearestFlagAndVerb) {
    EXPECT_EQ(message_of({"ask", "--sead", "1"}), "There is no flag \"--sead\" of ask; did you mean --seed?");
    EXPECT_EQ(message_of({"ask", "--maxtokens=3"}),
              "There is no flag \"--maxtokens\" of ask; did you mean --max-tokens?");
    EXPECT_EQ(message_of({"ask", "--zzzzzzzz"}),
              "There is no flag \"--zzzzzzzz\" of ask; dgemma ask --help lists the flags.");
    EXPECT_EQ(message_of({"aks", "hello"}), "There is no command \"aks\"; did you mean ask?");
    EXPECT_TRUE(message_of({"frobnicate"})
                    .starts_with("There is no command \"frobnicate\"; the commands are ask, eval, info, "));
    EXPECT_NE(message_of({"ask", "-Q"}).find("There is no flag \"-Q\""), std::string::npos);
    EXPECT_EQ(message_of({"ask", "--cases", "x"}), "--cases is no flag of ask; it belongs to eval.");
    EXPECT_EQ(message_of({"--steps", "3", "ask"}), "--steps goes after a command: dgemma ask --steps ...");
}

TEST(Arguments, HelpIsReachableFromAnywhere) {
    for (const Words& words :
         {Words{"--help"}, Words{"-h"}, Words{"help"}, Words{"ask", "--help"}, Words{"help", "ask"}}) {
        const auto args = parse(words, {"DGEMMA_STEPS=nonsense"});
        ASSERT_TRUE(args) << args.error().message;
        EXPECT_TRUE(args->on(Flag::help));
    }
    EXPECT_EQ(parse({"help", "ask"})->verb(), Verb::ask);
}

TEST(Environment, HoldsWhereTheCommandLineIsSilent) {
    const Words environment = {"DGEMMA_STEPS=9", "DGEMMA_THINK=on", "DGEMMA_SEED=5", "HOME=/nowhere",
                               "DGEMMA_SHARED=/x"};
    const auto args = parse({"ask", "--seed", "6"}, environment);
    ASSERT_TRUE(args) << args.error().message;
    EXPECT_EQ(args->whole(Flag::steps), 9u);
    EXPECT_EQ(args->source(Flag::steps), "DGEMMA_STEPS");
    EXPECT_EQ(args->whole(Flag::seed), 6u);
    EXPECT_EQ(args->source(Flag::seed), "--seed");
    EXPECT_TRUE(args->on(Flag::think));
    EXPECT_TRUE(args->suspects().empty());
    EXPECT_FALSE(parse({"info"}, environment)->given(Flag::steps));
}

TEST(Environment, AnInvalidValueIsAnErrorInEveryVerb) {
    for (const VerbInfo& verb : verbs()) {
        const std::string name(verb.name);
        EXPECT_EQ(message_of({name}, {"DGEMMA_STEPS=-3"}),
                  "DGEMMA_STEPS takes a whole number from 1 to 10000, not \"-3\".");
    }
    EXPECT_EQ(message_of({"ask", "--seed", "1"}, {"DGEMMA_SEED="}),
              "DGEMMA_SEED takes a whole number from 0 to 18446744073709551615, not an empty value.");
    EXPECT_EQ(message_of({"ask"}, {"DGEMMA_THINK=perhaps"}),
              "DGEMMA_THINK takes yes or no, not \"perhaps\".");
}

TEST(Environment, AMisspeltNameIsPointedOut) {
    const auto args = parse({"ask"}, {"DGEMMA_STPES=3", "DGEMMA_SOMEWHERE=/x"});
    ASSERT_TRUE(args);
    ASSERT_EQ(args->suspects().size(), 1u);
    EXPECT_EQ(args->suspects()[0].first, "DGEMMA_STPES");
    EXPECT_EQ(args->suspects()[0].second, "DGEMMA_STEPS");
}

TEST(Guards, AreTurnedOnAndOffByName) {
    diffusion::Guards guards;
    EXPECT_TRUE(turn_on(guards, "entropy-stop"));
    EXPECT_TRUE(guards.entropy_stop);
    EXPECT_TRUE(turn_on(guards, "hard_trim=0.25"));
    EXPECT_TRUE(guards.hard_trim);
    EXPECT_FLOAT_EQ(guards.hard_trim_floor, 0.25f);
    EXPECT_TRUE(turn_on(guards, "empty_reply_reroll=1"));
    EXPECT_EQ(guards.empty_reply_rerolls, 1);
    EXPECT_TRUE(turn_off(guards, "last-step"));
    EXPECT_FALSE(guards.last_step);
    EXPECT_TRUE(turn_off(guards, "all"));
    EXPECT_FALSE(guards.entropy_stop || guards.hard_trim || guards.degenerate_gate);
    EXPECT_EQ(guards.empty_reply_rerolls, 0);
    EXPECT_TRUE(turn_on(guards, "empty_reply_reroll"));
    EXPECT_EQ(guards.empty_reply_rerolls, 3);
}

TEST(Guards, EveryNameIsKnownBothWays) {
    for (const std::string_view name : guard_names()) {
        diffusion::Guards guards;
        EXPECT_TRUE(turn_on(guards, name)) << name;
        EXPECT_TRUE(turn_off(guards, name)) << name;
    }
}

TEST(Guards, NonsenseIsRefused) {
    EXPECT_EQ(message_of({"ask", "--guard", "entropy_stp"}),
              "--guard knows no guard \"entropy_stp\"; did you mean entropy_stop?");
    EXPECT_NE(message_of({"ask", "--no-guard", "zebra"}).find("the guards are degenerate_gate, last_step"),
              std::string::npos);
    EXPECT_EQ(message_of({"ask", "--guard", "hard_trim=2"}),
              "--guard hard_trim takes a number above 0, at most 1, not \"2\".");
    EXPECT_EQ(message_of({"ask", "--guard", "last_step=2"}),
              "--guard last_step takes no value; leave out \"=2\".");
}

}  // namespace
}  // namespace dgemma::cli
