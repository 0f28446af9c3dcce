//! Who is let in: certificates, tokens, strangers and nobody.

use super::Harness;
use super::harness::Authority;
use crate::authn::token::{Grant, Ref};

const PODS: &str = "/api/v1/namespaces/default/pods";

fn grant(account: &str, uid: &str) -> Grant {
    Grant {
        namespace: "default".to_owned(),
        service_account: Ref {
            name: account.to_owned(),
            uid: uid.to_owned(),
        },
        audiences: Vec::new(),
        expiration_seconds: 3607,
        pod: Some(Ref {
            name: "p".to_owned(),
            uid: "uid-of-p".to_owned(),
        }),
        node: None,
        secret: None,
    }
}

fn now() -> i64 {
    apimachinery::time::now().unix_timestamp()
}

#[tokio::test]
async fn nobody_is_told_what_nobody_may_not_do() {
    let harness = Harness::start().await;
    let client = harness.client(None).await;
    client.get(PODS).await.is_status(
        403,
        "Forbidden",
        "pods is forbidden: User \"system:anonymous\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\"",
    );
    let answer = client.get("/foo").await;
    answer.is_status(
        403,
        "Forbidden",
        "forbidden: User \"system:anonymous\" cannot get path \"/foo\"",
    );
}

#[tokio::test]
async fn a_strangers_certificate_is_unauthorized() {
    let harness = Harness::start().await;
    // Of the same name, so that the client offers it.
    let stranger = Authority::new().client("admin", "system:masters");
    let client = harness.client(Some(&stranger)).await;
    client
        .get(PODS)
        .await
        .is_status(401, "Unauthorized", "Unauthorized");
}

#[tokio::test]
async fn a_bad_token_is_unauthorized() {
    let harness = Harness::start().await;
    let client = harness.client(None).await;
    for token in ["nonsense", "a.b.c", "abcdef.0123456789abcdef"] {
        let header = format!("Bearer {token}");
        let answer = client
            .send("GET", PODS, &[("authorization", header.as_str())], "")
            .await;
        answer.is_status(401, "Unauthorized", "Unauthorized");
    }
}

#[tokio::test]
async fn a_bound_token_is_its_service_account_while_its_pod_lives() {
    let harness = Harness::start().await;
    let client = harness.client(None).await;
    let issued = harness
        .tokens
        .issue(grant("sa", "uid-of-sa"), now())
        .expect("a token");
    let header = format!("Bearer {}", issued.token);
    let answer = client
        .send("GET", PODS, &[("authorization", header.as_str())], "")
        .await;
    answer.is_status(
        403,
        "Forbidden",
        "pods is forbidden: User \"system:serviceaccount:default:sa\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\"",
    );
    for gone in [grant("other", "uid-of-other"), grant("sa", "another uid")] {
        let issued = harness.tokens.issue(gone, now()).expect("a token");
        let header = format!("Bearer {}", issued.token);
        let answer = client
            .send("GET", PODS, &[("authorization", header.as_str())], "")
            .await;
        answer.is_status(401, "Unauthorized", "Unauthorized");
    }
}

#[tokio::test]
async fn a_token_is_refused_when_old_meant_for_others_or_tampered_with() {
    let harness = Harness::start().await;
    let backend = harness.server.backend().as_ref();
    let wanted = harness.tokens.api_audiences().to_vec();
    let verify = |token: String, at: i64| {
        let (tokens, wanted) = (harness.tokens.clone(), wanted.clone());
        async move {
            tokens
                .verify(&token, &wanted, backend, at)
                .await
                .map(|_| ())
                .map_err(|refusal| refusal.to_string())
        }
    };
    let issued = harness
        .tokens
        .issue(grant("sa", "uid-of-sa"), now())
        .expect("a token");
    assert_eq!(verify(issued.token.clone(), now()).await, Ok(()));
    // What pods mount lives a year, and says an hour.
    assert_eq!(issued.expiration, now() + 3607);
    assert_eq!(verify(issued.token.clone(), now() + 4000).await, Ok(()));
    let mut short = grant("sa", "uid-of-sa");
    short.expiration_seconds = 600;
    let short = harness.tokens.issue(short, now()).expect("a token").token;
    assert_eq!(
        verify(short.clone(), now() + 700).await,
        Err("service account token has expired".to_owned())
    );
    let mut other = grant("sa", "uid-of-sa");
    other.audiences = vec!["vault".to_owned()];
    let other = harness.tokens.issue(other, now()).expect("a token").token;
    assert!(
        verify(other, now())
            .await
            .expect_err("refused")
            .starts_with("token audiences")
    );
    let mut tampered = short;
    tampered.replace_range(60..61, if &tampered[60..61] == "A" { "B" } else { "A" });
    assert_eq!(
        verify(tampered, now()).await,
        Err("invalid bearer token".to_owned())
    );
}

#[tokio::test]
async fn an_admin_can_act_as_somebody_else() {
    let harness = Harness::start().await;
    let client = harness.client(Some(&harness.admin())).await;
    let headers = [
        ("impersonate-user", "jane"),
        ("impersonate-group", "system:masters"),
    ];
    let answer = client.send("GET", &format!("{PODS}/x"), &headers, "").await;
    assert_eq!((answer.code, answer.text().as_str()), (200, "jane"));
    let headers = [("impersonate-user", "jane")];
    let answer = client.send("GET", PODS, &headers, "").await;
    answer.is_status(403, "Forbidden", "pods is forbidden: User \"jane\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\"");
    let answer = client
        .send("GET", PODS, &[("impersonate-group", "g")], "")
        .await;
    assert_eq!(answer.code, 500);
}
