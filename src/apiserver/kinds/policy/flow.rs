//! Flow schemas and priority levels (KEP-1040).

use apimachinery::Value;

use super::super::tree::{at_mut, default_number, default_text, default_value, object_mut, text};
use crate::registry::strategy::Strategy;

const GROUP: &str = "flowcontrol.apiserver.k8s.io";

pub struct FlowSchemas;

impl Strategy for FlowSchemas {
    fn id(&self) -> (&'static str, &'static str) {
        (GROUP, "flowschemas")
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn updates_unconditionally(&self) -> bool {
        false
    }

    fn default(&self, object: &mut Value) {
        if object["spec"].is_object() {
            default_number(&mut object["spec"], "matchingPrecedence", 1000);
        }
    }
}

pub struct PriorityLevelConfigurations;

impl Strategy for PriorityLevelConfigurations {
    fn id(&self) -> (&'static str, &'static str) {
        (GROUP, "prioritylevelconfigurations")
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn updates_unconditionally(&self) -> bool {
        false
    }

    fn default(&self, object: &mut Value) {
        match text(object, &["spec", "type"]) {
            "Exempt" => {
                object_mut(object, &["spec", "exempt"]);
                let exempt = &mut object["spec"]["exempt"];
                default_value(exempt, "nominalConcurrencyShares", 0);
                default_value(exempt, "lendablePercent", 0);
            }
            "Limited" => {
                object_mut(object, &["spec", "limited"]);
                let limited = &mut object["spec"]["limited"];
                default_value(limited, "nominalConcurrencyShares", 30);
                default_value(limited, "lendablePercent", 0);
                if text(limited, &["limitResponse", "type"]).is_empty() {
                    object_mut(limited, &["limitResponse"]);
                    default_text(&mut limited["limitResponse"], "type", "Queue");
                    object_mut(limited, &["limitResponse", "queuing"]);
                }
                if let Some(queuing) = at_mut(limited, &["limitResponse", "queuing"]) {
                    default_number(queuing, "queues", 64);
                    default_number(queuing, "handSize", 8);
                    default_number(queuing, "queueLengthLimit", 50);
                }
            }
            _ => {}
        }
    }
}
