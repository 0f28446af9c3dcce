//! Who is this? TokenReview and SelfSubjectReview.

use apimachinery::Value;
use apimachinery::status::Status;
use serde_json::json;

use crate::front::Front;
use crate::request::{RequestContext, UserInfo};

/// `status` of a SelfSubjectReview (KEP-3325): the user as the server sees it, after impersonation.
pub fn self_subject(context: &RequestContext) -> Value {
    json!({"userInfo": user_info(&context.user)})
}

/// `status` of a TokenReview.
pub async fn token(front: &Front, object: &Value) -> Result<Value, Status> {
    let spec = &object["spec"];
    let token = spec["token"].as_str().unwrap_or_default();
    if token.is_empty() {
        return Err(Status::bad_request(
            "token is required for TokenReview in authentication",
        ));
    }
    let asked: Vec<String> = spec["audiences"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|audience| audience.as_str().map(str::to_owned))
        .collect();
    let wanted = if asked.is_empty() {
        front.routes.tokens.api_audiences()
    } else {
        &asked
    };
    Ok(match front.authenticators.review(token, wanted).await {
        Ok(verified) => {
            let mut status = json!({"authenticated": true, "user": user_info(&verified.user)});
            if !verified.audiences.is_empty() {
                status["audiences"] = json!(verified.audiences);
            }
            status
        }
        Err(refusal) => json!({"user": {}, "error": refusal.to_string()}),
    })
}

fn user_info(user: &UserInfo) -> Value {
    let mut info = json!({"username": user.name, "groups": user.groups});
    if !user.uid.is_empty() {
        info["uid"] = user.uid.as_str().into();
    }
    if !user.extra.is_empty() {
        info["extra"] = json!(user.extra);
    }
    info
}
