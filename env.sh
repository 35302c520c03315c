# Source this file from bash or zsh (any folder): it opens the environment that `make setup` made.
#   source /path/to/chunkpilot/env.sh

if [ -n "${BASH_SOURCE:-}" ]; then
  _chunkpilot_root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
elif [ -n "${ZSH_VERSION:-}" ]; then
  eval '_chunkpilot_root=${${(%):-%x}:A:h}'
else
  _chunkpilot_root=$PWD
fi

if [ -r "$_chunkpilot_root/.venv/chunkpilot_env.sh" ]; then
  . "$_chunkpilot_root/.venv/chunkpilot_env.sh"
  unset _chunkpilot_root
else
  echo "chunkpilot: no environment in $_chunkpilot_root/.venv, run 'make setup' there first" >&2
  unset _chunkpilot_root
  return 1
fi
