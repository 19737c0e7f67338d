use super::*;

#[test]
fn the_init_is_wanted_as_pid_1_or_when_asked_for_but_never_in_the_agent() {
    let table: [(bool, &[&str], bool); 7] = [
        (true, &["garm-bootstrap", "run"], true),
        (false, &["garm-bootstrap", "--init", "run"], true),
        (false, &["garm-bootstrap", "run", "--init"], true),
        (false, &["garm-bootstrap", "run"], false),
        (true, &[AGENT, "run"], false),
        (false, &[AGENT, "--init", "run"], false),
        (false, &[], false),
    ];
    for (pid_1, args, wanted) in table {
        assert_eq!(is_wanted_as(pid_1, args), wanted, "{pid_1} {args:?}");
    }
}
