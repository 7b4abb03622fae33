// The scripts of `contextile completion`. They only pass words to the program and back.
#include "base/check.h"
#include "base/quote.h"
#include "base/suggest.h"
#include "cli/completion_words.h"

namespace contextile {
namespace {

// Bash splits words at ':' and '=' as well, and replaces only the last piece. The script therefore
// joins the pieces before it calls the program, and cuts them off the answers.
constexpr std::string_view kBash =
    R"BASH(# Completion of contextile in bash: source <(contextile completion bash)
_contextile() {
  local rest=${COMP_LINE:0:COMP_POINT} piece line word kind='' i
  local -a words=()
  for ((i = 0; i <= COMP_CWORD; i++)); do
    local trimmed=${rest#"${rest%%[![:space:]]*}"}
    piece=${COMP_WORDS[i]}
    ((i == COMP_CWORD)) && piece=$trimmed
    if [[ ${#words[@]} -eq 0 || $trimmed != "$rest" ]]; then
      words+=("$piece")
    else
      words[-1]+=$piece
    fi
    rest=${trimmed:${#piece}}
  done
  local typed=${words[-1]} kept='' breaks=${COMP_WORDBREAKS//[!:=@]/}
  [[ -n $breaks && $typed == *[$breaks]* ]] && kept=${typed%"${typed##*[$breaks]}"}
  COMPREPLY=()
  while IFS= read -r line; do
    if [[ -z $kind ]]; then
      kind=$line
      continue
    fi
    word=${line%%$'\t'*}
    COMPREPLY+=("${word#"$kept"}")
  done < <("${1/#\~/$HOME}" __complete "${words[@]:1}" 2>/dev/null)
  if [[ $kind == files ]]; then
    compopt -o filenames 2>/dev/null
    while IFS= read -r line; do
      COMPREPLY+=("$line")
    done < <(compgen -f -- "${typed#"$kept"}")
  fi
  [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[:=] ]] && compopt -o nospace 2>/dev/null
  return 0
}
complete -F _contextile contextile
)BASH";

constexpr std::string_view kZsh = R"ZSH(#compdef contextile
# Completion of contextile in zsh: source <(contextile completion zsh)
_contextile() {
  local -a answer whole open whole_texts open_texts
  local line word kind
  answer=("${(@f)$(${(Q)words[1]/#\~/$HOME} __complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
  kind=$answer[1]
  for line in "${(@)answer[2,-1]}"; do
    word=${line%%$'\t'*}
    if [[ -z $word ]]; then
      continue
    elif [[ $word == *[:=] ]]; then
      open+=("$word")
      open_texts+=("$word  ${line#*$'\t'}")
    else
      whole+=("$word")
      whole_texts+=("$word  ${line#*$'\t'}")
    fi
  done
  (( $#whole )) && compadd -l -d whole_texts -a whole
  (( $#open )) && compadd -l -S '' -d open_texts -a open
  if [[ $kind == files ]]; then
    [[ $PREFIX == --*=* ]] && compset -P '*='
    _files
  fi
}
if [[ $funcstack[1] == _contextile ]]; then
  _contextile "$@"
else
  compdef _contextile contextile
fi
)ZSH";

constexpr std::string_view kFish =
    R"FISH(# Completion of contextile in fish: contextile completion fish | source
function __contextile_complete
    set -l words (commandline -opc)
    set -l typed (commandline -ct)
    set -l answer ($words[1] __complete $words[2..-1] "$typed" 2>/dev/null)
    if test "$answer[1]" = files
        set -l head (string match -r -- '^--[^=]*=' "$typed")
        for path in (__fish_complete_path (string replace -- "$head" '' "$typed"))
            echo "$head$path"
        end
    end
    string join \n -- $answer[2..-1]
end
complete -c contextile -f -a '(__contextile_complete)'
)FISH";

}  // namespace

const std::vector<std::string>& completion_shells() {
  static const std::vector<std::string> kShells = {"bash", "zsh", "fish"};
  return kShells;
}

std::string_view completion_script(std::string_view shell) {
  if (shell == "bash") return kBash;
  if (shell == "zsh") return kZsh;
  if (shell == "fish") return kFish;
  fail_argument("completion: expected bash, zsh or fish, found {}{}", quote(shell),
                did_you_mean(shell, completion_shells()));
}

}  // namespace contextile
