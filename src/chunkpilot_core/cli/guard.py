"""``chunkpilot guard``: what a guard decided in a recorded run; each sub-verb is a file."""

HELP = 'say why a guard did what a bag shows, or decide all of it once more'
SUB_VERBS = {
    'explain': '_guard_explain',
    'replay': '_guard_replay',
}
