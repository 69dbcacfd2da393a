"""Scripts that tests of this folder start are not tests."""

collect_ignore = ["rank_scripts"]
