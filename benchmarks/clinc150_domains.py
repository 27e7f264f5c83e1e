"""Which of CLINC150's ten domains each of its 150 intents belongs to (Larson et al. 2019, CC BY 3.0)."""

from __future__ import annotations

_INTENTS = {
    "auto and commute": "current_location directions distance gas gas_type jump_start last_maintenance mpg "
    "oil_change_how oil_change_when schedule_maintenance tire_change tire_pressure traffic uber",
    "banking": "account_blocked balance bill_balance bill_due freeze_account interest_rate min_payment order_checks "
    "pay_bill pin_change report_fraud routing spending_history transactions transfer",
    "credit cards": "application_status apr card_declined credit_limit credit_limit_change credit_score damaged_card "
    "expiration_date improve_credit_score international_fees new_card redeem_rewards replacement_card_duration "
    "report_lost_card rewards_balance",
    "home": "calendar calendar_update next_song order order_status play_music reminder reminder_update shopping_list "
    "shopping_list_update smart_home todo_list todo_list_update update_playlist what_song",
    "kitchen and dining": "accept_reservations calories cancel_reservation confirm_reservation cook_time food_last "
    "how_busy ingredient_substitution ingredients_list meal_suggestion nutrition_info recipe restaurant_reservation "
    "restaurant_reviews restaurant_suggestion",
    "meta": "cancel change_accent change_ai_name change_language change_speed change_user_name change_volume maybe no "
    "repeat reset_settings sync_device user_name whisper_mode yes",
    "small talk": "are_you_a_bot do_you_have_pets fun_fact goodbye greeting how_old_are_you meaning_of_life tell_joke "
    "thank_you what_are_your_hobbies what_can_i_ask_you what_is_your_name where_are_you_from who_do_you_work_for "
    "who_made_you",
    "travel": "book_flight book_hotel car_rental carry_on exchange_rate flight_status international_visa lost_luggage "
    "plug_type timezone translate travel_alert travel_notification travel_suggestion vaccines",
    "utility": "alarm calculator date definition find_phone flip_coin make_call measurement_conversion roll_dice "
    "share_location spelling text time timer weather",
    "work": "direct_deposit income insurance insurance_change meeting_schedule next_holiday payday pto_balance "
    "pto_request pto_request_status pto_used rollover_401k schedule_meeting taxes w2",
}

DOMAINS = tuple(_INTENTS)

DOMAIN_OF = {intent: domain for domain, intents in _INTENTS.items() for intent in intents.split()}
"""Intent → domain."""
