from launcher import assert_refused, hpcfl, needs_mpirun

pytestmark = needs_mpirun


def test_ranks_run_settings_together_and_one_of_them_reports(tmp_path):
    job = hpcfl(3, "reproduce", "queries/table-1", "--output", tmp_path)

    assert job.returncode == 0, job.stderr
    assert job.stdout.count("24 of 24 match") == 1
    assert (tmp_path / "queries.json").exists()


def test_a_damaged_file_ends_all_ranks_with_one_sentence(tmp_path):
    (tmp_path / "queries.json").write_text("[]")

    job = hpcfl(3, "reproduce", "queries/table-1", "--output", tmp_path)

    assert_refused(job, "queries.json cannot be read", status=1)
