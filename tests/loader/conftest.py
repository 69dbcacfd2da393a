"""Scripts that tests of this folder start are not collected as tests."""

collect_ignore = ["rank_scripts"]
